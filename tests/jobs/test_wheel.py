"""A wheel of this tree works where there is no tree."""

import os
import subprocess
import sys
from pathlib import Path

from jobs import TFRINGRUN

ROOT = Path(__file__).parents[2]


def _pip(*arguments):
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *map(str, arguments)],
        check=True,
        timeout=110,
    )


def test_wheel(start, write_script, tmp_path):
    _pip(
        *("wheel", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", tmp_path, ROOT),
    )
    [wheel] = tmp_path.glob("tfring-*.whl")
    installed = tmp_path / "installed"
    _pip("install", "--no-deps", "--target", installed, wheel)

    script = write_script("""
        import tfring
        tfring.init()
        [total] = tfring.allreduce([1.0], op=tfring.Sum).numpy()
        print(f"{tfring.__file__}: {total:g}")
    """)
    job = start(
        [*TFRINGRUN, "-np", "2", sys.executable, script],
        env={"PYTHONPATH": str(installed)},
    )
    output, _ = job.communicate(timeout=60)
    module = os.fspath(installed / "tfring" / "__init__.py")
    assert output.count(f"{module}: 2") == 2, output

"""A wheel from the index works where there is no tree and no compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import TFRINGRUN

from tfring import _build_info

ROOT = Path(__file__).parents[2]


# Compiling the library takes two minutes on two cores, if they are free.
BUILD_SECONDS = 1200


def _run(*command):
    subprocess.run([*map(str, command)], check=True, timeout=BUILD_SECONDS)


@pytest.mark.timeout(BUILD_SECONDS + 300)
def test_wheel(run, write_script, tmp_path):
    index = tmp_path / "index"
    _run(sys.executable, ROOT / "tools" / "wheels.py", "--output", index)
    of_tensorflow = index / f"tf-{_build_info.TENSORFLOW_VERSION}"
    [wheel] = (of_tensorflow / "tfring").glob("*.whl")
    assert wheel.name.startswith("tfring-")
    assert "-py3-none-manylinux_2_" in wheel.name
    page = (index / "index.html").read_text()
    assert f"--extra-index-url THIS-PAGE/{of_tensorflow.name}<br>" in page

    installed = tmp_path / "installed"
    _run(
        *(sys.executable, "-m", "pip", "--quiet", "install", "--no-deps"),
        *("--target", installed, "--index-url", of_tensorflow.as_uri()),
        "tfring",
    )
    environment = {
        "PYTHONPATH": str(installed),
        # Without a compiler, in whatever folder it is.
        "PATH": str(tmp_path / "empty"),
    }
    script = write_script("""
        import shutil
        import tfring
        tfring.init()
        [total] = tfring.allreduce([1.0], op=tfring.Sum).numpy()
        print(f"{tfring.__file__}: {total:g}, {shutil.which('g++')}")
    """)
    output = run(
        [*TFRINGRUN, "-np", "2", sys.executable, script], env=environment
    )
    module = os.fspath(installed / "tfring" / "__init__.py")
    assert output.count(f"{module}: 2, None") == 2, output

    run([*TFRINGRUN, "-np", "2", "--self-test"], env=environment)

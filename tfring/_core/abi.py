"""Checks that the op library fits this environment's TensorFlow and MPI.

C++ libraries that do not fit each other crash, or compute wrong results. So the
build records its versions, and `import tfring` compares them with the metadata
of packages, without loading TensorFlow, and with libmpi's own version, without
starting MPI. It also refuses releases of Keras that tfring does not support.
"""

import ctypes
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from tfring._core import fabrics

# The oldest and the newest release of Keras, as the build has recorded them.
_Releases = tuple[tuple[int, int], tuple[int, int]]

LIBRARY = Path(__file__).parents[1] / "libtfring_ops.so"

# The distributions of TensorFlow that pip knows.
_TENSORFLOW_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "tensorflow-cpu-aws",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)
# Patterns for the result of MPI_Get_library_version, by the name that the build
# has recorded. Other MPIs, such as a vendor's MPICH, are not compared.
_MPI_VERSIONS = {
    "Open MPI": r"Open MPI v(\d+\.\d+[^,\s]*)",
    "MPICH": r"MPICH Version:\s*(\d+\.\d+\S*)",
}
_MPI_VERSION_BYTES = 8192  # more than any MPI_MAX_LIBRARY_VERSION_STRING
_REBUILD = "run `make build`, or `pip install .` in tfring's source tree"


def check() -> None:
    """Compares this environment with the one that tfring was built for.

    Raises:
        ImportError: The op library is missing, or was built for another
            TensorFlow, another MPI or another release series of it; or Keras is
            of a release that tfring is not for.
    """
    build = _build_info()
    if build.TENSORFLOW_VERSION:  # tools/gpu_archive.py builds for none
        _check_tensorflow(build)
        _check_keras(build.KERAS_RELEASES, build.KERAS_REQUIREMENT)
    _check_launcher(build.MPI_VERSION)
    library = mpi_library()
    if not library.is_absolute():
        _check_loadable(build.MPI_VERSION, build.MPI_LIBRARY_SONAME)
    _check_mpi_version(build.MPI_VERSION, library)


def check_at_import() -> None:
    """Calls `check`; on failure `tfringrun` exits with the message alone.

    Raises:
        ImportError: `check` raises it.
        SystemExit: `check` raises an ImportError in `tfringrun`.
    """
    try:
        check()
    except ImportError as error:
        if _in_launcher():
            sys.exit(f"tfringrun: {error}")
        raise


def mpi_library() -> Path:
    """Returns the libmpi that tfring was built for.

    This is a full path if the build knew it, and otherwise a name for the
    dynamic loader.
    """
    build = _build_info()
    directories = [
        *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep),
        *build.MPI_LIBRARY_DIRS,
        f"{sys.prefix}/lib",
    ]
    for directory in filter(None, directories):
        library = Path(directory, build.MPI_LIBRARY_SONAME).absolute()
        if library.exists():
            return library
    return Path(build.MPI_LIBRARY_SONAME)


def open_mpi(library: Path | str) -> ctypes.CDLL:
    """Opens libmpi, with tfring's settings for UCX.

    Raises:
        OSError: There is no such library.
    """
    with fabrics.settings_of_ucx(os.environ):
        return ctypes.CDLL(str(library))


def _in_launcher() -> bool:
    """Tells whether this process is `tfringrun`, or a part of it."""
    if "-m" in sys.argv[:1]:  # Python has not found the module to run yet
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        return re.match(r"tfring\.(run|launcher)(\.|$)", module) is not None
    return bool(sys.argv) and Path(sys.argv[0]).name == "tfringrun"


def _build_info() -> Any:
    try:
        build = importlib.import_module("tfring._build_info")
    except ModuleNotFoundError:
        build = None
    if build is None or not LIBRARY.exists():
        raise ImportError(
            f"tfring's op library {LIBRARY} has not been built: {_REBUILD}."
        )
    return build


def _check_tensorflow(build: Any) -> None:
    built_for = build.TENSORFLOW_VERSION
    install = f"{build.TENSORFLOW_DISTRIBUTION}=={built_for}"
    # Of two installed distributions, prefer the one of the build.
    name, version = _first_installed(
        build.TENSORFLOW_DISTRIBUTION, *_TENSORFLOW_DISTRIBUTIONS
    )
    if version == built_for:
        return
    if not version:
        raise ImportError(
            f"tfring was built for TensorFlow {built_for}, but none is "
            f"installed: pip install {install}."
        )
    remedy = f"the wheel of tfring for TensorFlow {version}, or {_REBUILD}"
    if not _is_within(version, build.TENSORFLOW_RELEASES):
        remedy = (
            f"another tfring: this one can be built for TensorFlow "
            f"{_range(build.TENSORFLOW_RELEASES)}"
        )
    raise ImportError(
        f"tfring was built for TensorFlow {built_for}, but {name} {version} is "
        f"installed: install {install}, or {remedy}."
    )


def _check_keras(releases: _Releases, requirement: str) -> None:
    """Raises if this Keras is of a release that tfring does not support."""
    name, version = _first_installed("keras", "keras-nightly")
    if version and not _is_within(version, releases):
        raise ImportError(
            f"this tfring is for Keras {_range(releases)}, but {name} "
            f"{version} is installed: pip install '{requirement}', or take "
            "another tfring."
        )


def _first_installed(*distributions: str) -> tuple[str, str]:
    """Returns name and version of the first that is installed, or ""s."""
    for name in distributions:
        if (version := _installed_version(name)) is not None:
            return name, version
    return "", ""


def _is_within(version: str, releases: _Releases) -> bool:
    oldest, newest = releases
    release = tuple(int(part) for part in version.split(".")[:2])
    return oldest <= release <= newest


def _range(releases: _Releases) -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in releases)


def _installed_version(distribution: str) -> str | None:
    """Returns the version of a package; None if it is not installed."""
    stem = distribution.replace("-", "_")
    for folder in sys.path:
        # Read the name of pip's record: importlib.metadata would cost the
        # launcher 25 ms. It is needed for other kinds of records only.
        for record in Path(folder).glob(f"{stem}-*.dist-info"):
            return record.stem.rpartition("-")[2]
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_launcher(mpi_version: str) -> None:
    """Raises if another MPI's mpirun started this process.

    The ranks would not find each other: each would be rank 0 of 1, and silently
    train alone.
    """
    built_for_open_mpi = mpi_version.startswith("Open MPI")
    if "OMPI_COMM_WORLD_SIZE" in os.environ and not built_for_open_mpi:
        launcher = "Open MPI"
    elif "HYDI_CONTROL_FD" in os.environ and built_for_open_mpi:
        launcher = "MPICH"
    else:
        return
    raise ImportError(
        f"tfring was built for {mpi_version}, but this process was started by "
        f"{launcher}'s mpirun: start it with `tfringrun`, which knows the "
        f"right one, or {_REBUILD} with {launcher}'s mpicc as MPICC."
    )


def _check_loadable(mpi_version: str, soname: str) -> None:
    try:
        # The directory of libmpi is unknown, so only the loader can find it.
        open_mpi(soname)
    except OSError:
        others = sorted(
            {str(path) for path in Path(sys.prefix, "lib").glob("libmpi.so.*")}
        )
        instead = f" (there is {', '.join(others)})" if others else ""
        raise ImportError(
            f"tfring was built for {mpi_version}, but its {soname} is not on "
            f"this machine{instead}: install that MPI, or {_REBUILD} with the "
            "MPI that you have."
        ) from None


def _check_mpi_version(built_for: str, library: Path) -> None:
    """Raises if libmpi is of another release series than the build's.

    The loader takes any file of the right name, which Open MPI has not changed
    since 3.0. Within a series, such as 5.0, versions are compatible.
    """
    family, _, expected = built_for.rpartition(" ")
    said = _library_version(library)
    match = re.match(_MPI_VERSIONS.get(family, "(?!)"), said)
    if match is None or _series(match[1]) == _series(expected):
        return
    raise ImportError(
        f"tfring was built for {built_for}, but {library} is of {family} "
        f"{match[1]}: install {family} {expected} again, or {_REBUILD} with "
        f"the mpicc of {family} {match[1]} as MPICC."
    )


def _library_version(library: Path) -> str:
    """Returns libmpi's version string, which is valid before MPI_Init."""
    text = ctypes.create_string_buffer(_MPI_VERSION_BYTES)
    length = ctypes.c_int()
    try:
        mpi = open_mpi(library)
        mpi.MPI_Get_library_version(text, ctypes.byref(length))
    except (OSError, AttributeError):  # `tfring.init` will report it
        return ""
    return text.value.decode(errors="replace")


def _series(version: str) -> list[str]:
    return version.split(".")[:2]

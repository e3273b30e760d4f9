"""tfring says at import, in one sentence, what it does not fit."""

import ctypes
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfring import _build_info
from tfring._core import abi

MPICH = {"MPI_VERSION": "MPICH 5.0.2"}
ABSENT = {
    "MPI_LIBRARY_SONAME": "libmpi.so.no-such-version",
    "MPI_LIBRARY_DIRS": [],
}
# libc stands in for an MPI of /etc/ld.so.conf, which only the loader finds.
LOADER = {"MPI_LIBRARY_SONAME": "libc.so.6", "MPI_LIBRARY_DIRS": []}


@pytest.fixture
def bend(monkeypatch, tmp_path):
    """Makes a build and an environment that fit, except for the arguments."""
    (tmp_path / "libmpi.so.40").touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "libtfring_ops.so").touch()
    monkeypatch.setattr(abi, "LIBRARY", tmp_path / "libtfring_ops.so")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    # The packages that are installed here are out of sight.
    path = [folder for folder in sys.path if "-packages" not in folder]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *path])
    for name in ("LD_LIBRARY_PATH", "OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"):
        monkeypatch.delenv(name, raising=False)

    def bend(
        installed=("tensorflow-cpu", "2.21.0"),
        kind="dist-info",
        keras=("keras", "3.15.1"),
        said=None,
        env=(),
        **build,
    ):
        info = SimpleNamespace(
            **{
                "TENSORFLOW_VERSION": "2.21.0",
                "TENSORFLOW_DISTRIBUTION": "tensorflow-cpu",
                "TENSORFLOW_RELEASES": ((2, 18), (2, 22)),
                "KERAS_RELEASES": ((3, 12), (3, 16)),
                "KERAS_REQUIREMENT": "keras>=3.12,<3.17",
                "MPI_VERSION": "Open MPI 5.0.11",
                "MPI_LIBRARY_SONAME": "libmpi.so.40",
                "MPI_LIBRARY_DIRS": [str(tmp_path)],
                **build,
            }
        )
        monkeypatch.setitem(sys.modules, "tfring._build_info", info)

        for before in tmp_path.glob("*-info"):
            shutil.rmtree(before)
        for name, version in filter(all, (installed, keras)):
            record = f"{name.replace('-', '_')}-{version}.{kind}"
            (tmp_path / record).mkdir()
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (tmp_path / record / "PKG-INFO").write_text(text)
        for name in env:
            monkeypatch.setenv(name, "4")
        if said is not None:
            monkeypatch.setattr(abi, "_library_version", lambda library: said)
        return tmp_path

    return bend


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
    library = abi.mpi_library()
    ctypes.CDLL(str(library))  # raises if it is not there
    said = abi._library_version(library)
    assert _build_info.MPI_VERSION.partition(" ")[0] in said
    assert abi._library_version(Path("libc.so.6")) == ""


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"installed": ("tensorflow", "2.21.0")},
        {"kind": "egg-info"},
        {
            "installed": [""],
            "TENSORFLOW_VERSION": "",
        },  # This build needs no TensorFlow.
        {"keras": ("keras-nightly", "3.16.0.dev2026102704")},
        LOADER,
        {"said": "Open MPI v5.0.8, package: a cluster's"},
        {"said": "MPI VERSION    : CRAY MPICH version 8.1.29", **MPICH},
        {
            "said": "Intel(R) MPI Library 2021.12 for Linux* OS",
            "MPI_VERSION": "Intel MPI 2021.10",
        },
    ],
)
def test_what_fits(bend, how):
    bend(**how)
    abi.check()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"installed": ("tensorflow-cpu", "2.22.0")},
            [
                "built for TensorFlow 2.21.0",
                "the wheel of tfring for TensorFlow 2.22.0",
                "install tensorflow-cpu==2.21.0",
            ],
        ),
        (
            {"installed": ("tf-nightly", "2.20.0")},
            ["tf-nightly 2.20.0 is installed"],
        ),
        ({"installed": [""]}, ["pip install tensorflow-cpu==2.21.0"]),
        (
            {"installed": ("tf-nightly-cpu", "2.24.0.dev20270101")},
            [
                "tf-nightly-cpu 2.24.0.dev20270101 is installed",
                "install tensorflow-cpu==2.21.0, or another tfring",
                "for TensorFlow 2.18 to 2.22",
            ],
        ),
        (
            {"keras": ("keras", "3.17.0")},
            [
                "for Keras 3.12 to 3.16, but keras 3.17.0 is installed",
                "pip install 'keras>=3.12,<3.17', or take another tfring",
            ],
        ),
        (
            {"keras": ("keras-nightly", "3.17.0.dev2027010104")},
            ["but keras-nightly 3.17.0.dev2027010104 is installed"],
        ),
        (
            {**MPICH, **ABSENT},
            ["built for MPICH 5.0.2", "version is not on this machine: "],
        ),
        (
            {**MPICH, "env": ["OMPI_COMM_WORLD_SIZE"]},
            ["started by Open MPI's mpirun", "tfringrun"],
        ),
        (
            {"env": ["HYDI_CONTROL_FD"]},
            ["started by MPICH's mpirun", "tfringrun"],
        ),
    ],
)
def test_what_does_not(bend, how, words):
    bend(**how)
    text = message()
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("built_for", "said", "found"),
    [
        ("Open MPI 5.0.11", "Open MPI v5.1.0a1, repo", "Open MPI 5.1.0a1"),
        ("MPICH 5.0.2", "MPICH Version:      4.3.1\nMPICH R", "MPICH 4.3.1"),
    ],
)
@pytest.mark.parametrize(
    ("where", "path"), [({}, "/.*"), (LOADER, "libc.so.6")]
)
def test_mpi_of_another_series(bend, built_for, said, found, where, path):
    """The other MPI's libmpi has the same name, in the build's place or not."""
    bend(MPI_VERSION=built_for, said=said, **where)
    expected = f"built for {built_for}, but {path} is of {found}: .*make build"
    assert re.search(expected, message())


def test_what_was_not_built(bend, monkeypatch):
    bend()
    abi.LIBRARY.unlink()
    text = message()
    for word in (str(abi.LIBRARY), "make build", "pip install ."):
        assert word in text
    monkeypatch.setitem(sys.modules, "tfring._build_info", None)
    assert "has not been built" in message()


def test_mpi_beside_the_interpreter(bend):
    library = bend(MPI_LIBRARY_DIRS=[]) / "lib" / "libmpi.so.40"
    library.touch()
    assert abi.mpi_library() == library
    # If the build's library is gone, the message names the other one.
    bend(**ABSENT)
    assert f"(there is {library})" in message()


@pytest.mark.parametrize(
    ("argv", "orig_argv", "in_launcher"),
    [
        (["/venv/bin/tfringrun"], ["python", "/venv/bin/tfringrun"], True),
        (["-m"], ["python", "-X", "dev", "-m", "tfring.run", "-np", "2"], True),
        (["-m"], ["python", "-m", "tfring.launcher.check_build"], True),
        (["-m"], ["python", "-m", "tfring.runner"], False),
        (["train.py"], ["python", "train.py", "-m", "tfring.run"], False),
        ([], [], False),
    ],
)
def test_the_launcher_ends_without_a_traceback(
    bend, monkeypatch, argv, orig_argv, in_launcher
):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    bend()
    abi.check_at_import()
    bend(installed=[""])
    expected = SystemExit if in_launcher else ImportError
    with pytest.raises(expected) as raised:
        abi.check_at_import()
    assert str(raised.value) == in_launcher * "tfringrun: " + message()

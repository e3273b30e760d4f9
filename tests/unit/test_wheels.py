"""Checks of wheels by tools/wheels.py, and its index for pip."""

import hashlib
import importlib.metadata
import zipfile

import pytest

import wheels

_NEEDED = """
  0x0010:   Name: GLIBC_2.14  Flags: none  Version: 35
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 30
  0x0030:   Name: CXXABI_1.3.13  Flags: none  Version: 31
  0x0040:   Name: GLIBCXX_3.4.9  Flags: none  Version: 32
"""


@pytest.mark.parametrize(
    ("libstdcxx", "glibc"),
    [
        ("3.4.9", (2, 34)),  # by the C library itself
        ("3.4.29", (2, 34)),
        ("3.4.30", (2, 35)),
        ("3.4.31", (2, 39)),  # in none before that
    ],
)
def test_the_oldest_platform(libstdcxx, glibc):
    needed = _NEEDED + f"  0x50:   Name: GLIBCXX_{libstdcxx}  Flags: none"
    assert wheels.oldest_glibc(needed) == glibc


def test_a_compiler_that_is_too_new():
    with pytest.raises(ValueError, match=r"GLIBCXX_3.4.99 is in no manylinux"):
        wheels.oldest_glibc("Name: GLIBCXX_3.4.99  Flags: none")


@pytest.mark.parametrize(
    ("installed", "lacks"),
    [
        ({"setuptools": "65.5.0", "wheel": "0.45"}, "has setuptools 65.5.0"),
        ({"setuptools": "80.1"}, "has no wheel"),
        ({"setuptools": "80.1", "wheel": "0.45"}, None),
    ],
)
def test_an_environment_that_cannot_build(monkeypatch, installed, lacks):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    if lacks is None:
        wheels.check_setuptools()
        return
    with pytest.raises(SystemExit, match=f"{lacks}: pip install 'setuptools"):
        wheels.check_setuptools()


def test_the_index(tmp_path):
    for version, tensorflow in (
        ("2.22.0.dev20260905", "tf-nightly-cpu"),
        ("2.20.0", "tensorflow-cpu"),
        ("2.21.0", "tensorflow-cpu"),
    ):
        folder = tmp_path / f"tf-{version}" / "tfring"
        folder.mkdir(parents=True)
        wheel = folder / "tfring-0.1.0-py3-none-manylinux_2_35_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr(
                "tfring-0.1.0.dist-info/METADATA",
                f"Requires-Python: >=3.10\n"
                f"Requires-Dist: {tensorflow}=={version}\n",
            )
    wheels.write_index(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert page.index("tensorflow-cpu==2.20.0</a>") < page.index(
        "tensorflow-cpu==2.21.0</a>"
    )
    assert "tf-nightly-cpu==2.22.0.dev20260905</a>" in page
    assert 'href="tfring/"' in (folder.parent / "index.html").read_text()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (
        f'<a href="{wheel.name}#sha256={digest}" '
        f'data-requires-python="&gt;=3.10">{wheel.name}</a>'
    ) in (folder / "index.html").read_text()

"""The releases of TensorFlow and Keras that the build takes."""

import re
from pathlib import Path

import pytest

from tfring_build import find

ROOT = Path(__file__).parents[2]
CPU, NIGHTLY = "tensorflow-cpu", "tf-nightly-cpu"


@pytest.mark.parametrize(
    ("name", "version", "keras", "keras2"),
    [
        (CPU, "2.18.1", "keras>=3.12,<3.17", "tf-keras>=2.18,<2.19"),
        (
            NIGHTLY,
            "2.22.0.dev20260905",
            "keras-nightly>=3.12.dev0,<3.17",
            "tf-keras-nightly>=2.22.dev0,<2.23",
        ),
    ],
)
def test_a_tensorflow_has_its_keras(name, version, keras, keras2):
    tensorflow = find.TensorFlow(Path(), name, version)
    assert (tensorflow.keras, tensorflow.keras2) == (keras, keras2)


def installed(tmp_path, monkeypatch, name, version):
    """Makes a TensorFlow of that version the only one to be found."""
    site = tmp_path / version
    package, info = site / "tensorflow", site / f"{name}-{version}.dist-info"
    for folder in package, info:
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("tensorflow/__init__.py,,\n")
    monkeypatch.setattr(find, "_package_directories", lambda: [str(site)])
    find.find_tensorflow.cache_clear()


@pytest.fixture(autouse=True)
def fresh_cache():
    yield
    find.find_tensorflow.cache_clear()


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        (CPU, "2.17.1", ["Take another TensorFlow"]),
        (CPU, "2.23.0", ["Take a newer tfring, or another TensorFlow"]),
        (
            NIGHTLY,
            "2.23.0.dev20270101",
            ["pip install 'tf-nightly-cpu>=2.18.dev0,<2.23'"],
        ),
    ],
)
def test_another_release_is_refused(
    tmp_path, monkeypatch, name, version, words
):
    installed(tmp_path, monkeypatch, name, version)
    with pytest.raises(find.NotFoundError) as raised:
        find.missing_requirements()
    said = str(raised.value)
    assert f"for TensorFlow 2.18 to 2.22, but {name} {version}" in said
    for word in words:
        assert word in said


@pytest.mark.parametrize("version", ["2.18.1", "2.22.0.dev20260905"])
def test_the_oldest_and_the_newest_are_taken(tmp_path, monkeypatch, version):
    installed(tmp_path, monkeypatch, CPU, version)
    assert find.find_tensorflow().version == version


def test_the_docs_name_the_releases():
    for page in "install.md", "limits.md":
        text = (ROOT / "docs" / page).read_text()
        assert re.search(rf"TensorFlow\s+{find.TENSORFLOW}\b", text), page
        assert re.search(rf"Keras\s+{find.KERAS}\b", text), page

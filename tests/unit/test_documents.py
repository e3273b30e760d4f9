"""The documents are whole: names, settings, links, and files that they name.

`make docs` checks the links of the site; here are those of what stands outside.
"""

import inspect
import re
from pathlib import Path

import keras
import pytest

import tfring
import tfring.callbacks
import tfring.compression
import tfring.elastic
import tfring.layers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    documented = set(
        re.findall(r"^(?:::: |\[\]\(\)\{#)([\w.]+)\}?$", pages, re.MULTILINE)
    )
    kinds = {
        "callbacks": keras.callbacks.Callback,
        "compression": tfring.compression.Compressor,
        "elastic": object,
        "layers": keras.layers.Layer,
    }
    public = {
        f"tfring.{module}.{name}"
        for module, kind in kinds.items()
        for name, value in vars(getattr(tfring, module)).items()
        if not name.startswith("_")
        and isinstance(value, type)
        and issubclass(value, kind)
    }
    public |= {f"tfring.metrics.{name}" for name in ("evaluate", "predict")}
    operations = {op.name for op in tfring.ReduceOp}
    public |= {
        f"tfring.{name}"
        for name in set(tfring.__all__) - operations - {"__version__"}
        if not inspect.ismodule(getattr(tfring, name))
    }
    assert public - documented == set()


def test_every_setting_is_described():
    read = set()
    for source in [
        *(ROOT / "tfring_ops").rglob("*.cc"),
        *(ROOT / "tfring").rglob("*.py"),
    ]:
        pattern = r"""(?:Read\w+|get|seconds)\(\s*"(TFRING_[A-Z_]+)\""""
        read.update(re.findall(pattern, source.read_text()))
    # tfringrun sets these for its ranks, and no user does.
    read -= {f"TFRING_ELASTIC_{name}" for name in ("RENDEZVOUS", "SLOT")}
    read -= {"TFRING_REPORTS"}
    settings = (DOCS / "settings.md").read_text()
    described = re.findall(r"^`(TFRING_[A-Z_]+)`", settings, re.MULTILINE)
    assert len(read) > 10
    assert sorted(read) == sorted(described)


def _anchor(heading):
    words = re.sub(r"[^\w\s-]", "", heading.lower())
    return "#" + re.sub(r"\s", "-", words.strip())


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_outside_of_the_site(name):
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)\s]+)\)|^\[.+?\]: (\S+)$", text, re.MULTILINE)
    links = [inline or reference for inline, reference in links]
    assert links
    for link in links:
        path, hash_, anchor = link.partition("#")
        target = ROOT / path if path else ROOT / name
        assert target.exists(), link
        if hash_:
            headings = re.findall(
                r"^#+ (.*)$", target.read_text(), re.MULTILINE
            )
            assert f"#{anchor}" in map(_anchor, headings), link


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    # Files of the library are named without its folder.
    named = re.findall(r"`([\w./]+/[\w./]+\.(?:cc|h|cu|py|md))`", text)
    assert len(named) > 20
    # The files that the examples of changes would add.
    to_be_written = {
        "algorithms/ring/scan.h",
        "engine/collectives/scan.cc",
        "tfring/_ops/scan.py",
        "transport/ucx/ucx.h",
    }
    assert to_be_written <= {*named}
    for path in {*named} - to_be_written:
        folders = (ROOT, ROOT / "tfring_ops")
        assert any((folder / path).exists() for folder in folders), path


def test_each_page_has_a_name_and_a_description_of_its_own():
    pages = [path.read_text() for path in DOCS.rglob("*.md")]
    descriptions = [
        re.match(r"---\ndescription: (.+)", page)[1] for page in pages
    ]
    # CHANGELOG.md and CONTRIBUTING.md are included, with their names.
    own = [page for page in pages if "---\n\n--8<--" not in page]
    names = [re.search(r"^# (.+)", page, re.MULTILINE)[1] for page in own]
    for texts in (descriptions, names):
        assert len(set(texts)) == len(texts)


def test_code_on_the_pages_is_not_cut_off():
    # At 1400 pixels a block shows 84 columns, beside which a button needs some.
    for page in DOCS.rglob("*.md"):
        blocks = re.findall(
            r"^( *)```.*\n((?:.*\n)*?)\1```", page.read_text(), re.MULTILINE
        )
        for indent, text in blocks:
            for line in text.splitlines():
                shown = re.sub(r" +# \(\d+\)!$", "", line.removeprefix(indent))
                assert len(shown) <= 78, f"{page.relative_to(DOCS)}: {line}"

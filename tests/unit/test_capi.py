"""Every exported function of the C API is guarded, and used."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAPI = ROOT / "tfring_ops" / "capi"
GUARDS = ("RunAsCStatus", "RunAsText", "RunAnyway", "RunOr")


def _bodies():
    """Returns the exported functions and their bodies."""
    paths = [*CAPI.glob("*.cc"), ROOT / "tfring_ops/tf/input_time.cc"]
    text = "".join(path.read_text() for path in sorted(paths))
    functions = r"^[\w* ]+?\b(tfring_\w+)\([^{;]*\) \{\n(.*?)^\}"
    return dict(re.findall(functions, text, re.MULTILINE | re.DOTALL))


def _exported():
    text = "".join(path.read_text() for path in sorted(CAPI.glob("*.h")))
    return re.findall(r"^TFRING_EXPORT [\w* ]+?\b(tfring_\w+)\(", text, re.M)


def test_all_are_found():
    assert sorted(_bodies()) == sorted(_exported())
    assert len(_exported()) > 15


@pytest.mark.parametrize("name", sorted(_exported()))
def test_no_exception_crosses(name):
    last = _bodies()[name].strip().removeprefix("return ")
    last = last.rpartition("\n  return ")[2]
    assert last.startswith(tuple(f"tfring::{guard}" for guard in GUARDS)), last


def test_each_has_a_caller():
    calls = "".join(
        line
        for folder in ("tfring", "tools", "tests/gpu", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if ".argtypes" not in line and ".restype" not in line
    )
    unused = [name for name in _exported() if f"{name}(" not in calls]
    assert unused == []

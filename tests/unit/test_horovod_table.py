"""docs/horovod.md says the truth about every name of Horovod's."""

import inspect
import re
from functools import reduce
from pathlib import Path

import pytest

import tfring

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "horovod.md").read_text()
STATES = ("same", "better", "different", "absent")

# Rows of three cells: names, parameters, state.
ROWS = [
    (name, parameters, state)
    for names, parameters, state in re.findall(
        r"^\| (`.*?) \| ?(.*?) ?\| (.*?) \|$", DOCUMENT, re.MULTILINE
    )
    for name in re.findall(r"`([\w.]+)`", names)
]


def found(name):
    return reduce(getattr, name.split("."), tfring)


def test_the_table_is_read():
    assert len(ROWS) > 75
    assert all(state.startswith(STATES) for _, _, state in ROWS)


@pytest.mark.parametrize(
    ("name", "parameters", "state"), ROWS, ids=[name for name, _, _ in ROWS]
)
def test_a_name_is_what_it_is_said_to_be(name, parameters, state):
    if state.startswith("absent"):
        with pytest.raises(AttributeError):
            found(name)
        return
    thing = found(name)
    if not state.startswith("same") or not parameters:
        return
    absent = re.findall(r"~~`(\w+)`~~", parameters)
    expected = [p for p in re.findall(r"\w+", parameters) if p not in absent]
    actual = inspect.signature(thing).parameters
    assert list(actual)[: len(expected)] == expected
    assert not set(absent) & set(actual)
    # Arguments that tfring adds are optional, or old calls would fail.
    for parameter in list(actual.values())[len(expected) :]:
        optional = parameter.default is not inspect.Parameter.empty
        assert optional or parameter.kind is inspect.Parameter.VAR_KEYWORD


def test_nothing_of_ours_is_missing_in_the_page():
    missing = [
        name
        for name in tfring.__all__
        if name != "__version__"
        and not inspect.ismodule(getattr(tfring, name))
        and not re.search(rf"`{name}`", DOCUMENT)
    ]
    assert missing == []


def test_environment_variables_are_read_somewhere():
    sources = "".join(
        path.read_text()
        for folder in ("tfring", "tfring_ops")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cc", ".h", ".py")
    )
    variables = set(re.findall(r"TFRING_[A-Z_]+", DOCUMENT))
    assert len(variables) >= 3
    assert [v for v in variables if f'"{v}"' not in sources] == []


def test_a_name_in_the_place_of_average_is_no_average():
    tfring.init()
    for call in (
        lambda: tfring.allreduce([1.0], "loss"),
        lambda: tfring.grouped_allreduce([[1.0]], "loss"),
    ):
        with pytest.raises(TypeError, match=r"average must .*name="):
            call()

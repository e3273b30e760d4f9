"""The table of the functions of Keras that tfring adds to."""

import ast
from pathlib import Path

import keras
import pytest

from tfring._keras.hooks import HOOKS, Hook, function_of

PACKAGE = Path(__file__).parents[2] / "tfring"


class Owner:
    """Stands for a class of a Keras that is not known yet."""

    def other(self, first, store):
        del first, store


def hook(function, parameters="self store"):
    return Hook(Owner, function, parameters, "saving whole states")


def test_this_keras_has_them_all(initialized):
    for each in HOOKS:
        is_replaced = hasattr(function_of(each), "__wrapped__")
        assert is_replaced or each.added is None, each


def test_each_function_has_one_row():
    assert len({(each.owner, each.function) for each in HOOKS}) == len(HOOKS)


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        (hook("gone"), "has no such one"),
        (hook("other"), r"has the parameters \(self, first, store\)"),
    ],
)
def test_another_keras_is_an_error(missing, found):
    expected = (
        rf"Owner\.{missing.function}\(self, store\) of Keras for saving whole "
        rf"states, and Keras {keras.__version__} {found}. Install"
    )
    with pytest.raises(ImportError, match=expected):
        function_of(missing)


def imported(node):
    """Returns the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_private_modules_of_keras_are_imported_in_one_package():
    importers = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if any("keras.src" in module for module in imported(node))
    }
    assert importers == {"_keras"}

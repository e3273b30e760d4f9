"""tfring/__init__.pyi declares the public names, each once."""

import inspect

import pytest
from programs import run_python

import tfring


@pytest.mark.parametrize("name", tfring.__all__)
def test_name_is_what_the_stub_says(name):
    value = getattr(tfring, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
    if inspect.ismodule(value):
        assert value.__name__ == f"tfring.{name}"


def test_other_names_do_not_exist():
    assert not hasattr(tfring, "reduce_gradients")
    assert set(dir(tfring)) == set(tfring.__all__)


@pytest.mark.parametrize("module", ["tfring", "tfring.launcher.cli"])
def test_import_alone_loads_no_framework(module):
    done = run_python("-c", f"import sys, {module}; print(*sys.modules)")
    loaded = {*done.stdout.split()}
    assert module in loaded, done.stderr
    assert not {"keras", "mpi4py", "numpy", "tensorflow"} & loaded

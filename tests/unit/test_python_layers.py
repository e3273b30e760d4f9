"""Imports in tfring/ point down, as includes in tfring_ops/ do."""

import ast
import graphlib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

# From the lowest to the highest. Packages of one layer do not know each other.
# "" is the package itself, tfring/__init__.py, with all public names.
LAYERS = (
    ("_build_info",),
    ("rendezvous",),
    ("_core",),
    ("_ops",),
    ("_memory",),
    ("_gradients",),
    ("_state",),
    ("_optim",),
    ("_keras",),
    ("_checkpoint",),
    ("callbacks", "compression", "data", "elastic", "layers", "metrics"),
    ("_compat",),
    ("",),
    ("bench", "checkpoint", "horovod"),
    ("timeline",),
)
LAYER_OF = {
    package: number
    for number, packages in enumerate(LAYERS)
    for package in packages
}
# The launcher is outside of the layers. It loads none of them, except for the
# location of the horovod modules. Its programs for ranks, which test an
# installation, use the package as scripts do.
LAUNCHER = "launcher"
# `python -m tfring.run`, which is the launcher.
LAUNCHER_ENTRY = "run"
# Programs that place processes by an engine, which the launcher makes ranks.
ENGINES = {"ray", "spark"}
LOADED_BY_LAUNCHER = {LAUNCHER, "_build_info", "rendezvous", "horovod"}
ALLOWED_IN_LAUNCHER = {*LOADED_BY_LAUNCHER, "_core", ""}

# Packages that are not always installed.
OPTIONAL = {
    *("matplotlib", "prometheus_client", "pyarrow", "pyspark", "ray", "torch")
}
# The launcher must not import these. Most take seconds; `importlib.metadata`
# takes 25 ms, half of the launcher's start.
HEAVY = {*OPTIONAL, "importlib.metadata", "keras", "mpi4py", "tensorflow"}


class Import(NamedTuple):
    importer: str
    target: str
    in_function: bool
    # Under `if TYPE_CHECKING`, which does not run.
    for_types: bool


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for p in sorted((ROOT / "tfring").rglob("*.py"))}
# The build writes it.
NAMES = MODULES.keys() | {"tfring._build_info"}


def package(module):
    """Returns the part of tfring/ that a module is in."""
    return module.split(".")[1] if "." in module else ""


def imports_of(module):
    """Yields all imports of a module, anywhere in its text."""
    tree = ast.parse(MODULES[module].read_text())
    in_functions, for_types = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            in_functions.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(
            node.test
        ):
            for_types.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                targets.append(name if name in NAMES else node.module)
        for target in targets:
            yield Import(
                module, target, id(node) in in_functions, id(node) in for_types
            )


IMPORTS = [each for module in MODULES for each in imports_of(module)]
OURS = [each for each in IMPORTS if each.target in NAMES]


def loaded_by(target, seen=None):
    """Returns what is loaded with a module: ours, and the others' packages."""
    if target not in NAMES:
        return {target if target in HEAVY else target.split(".")[0]}
    seen = set() if seen is None else seen
    if target not in seen:
        seen.add(target)
        for each in IMPORTS:
            deferred = each.in_function or each.for_types
            if each.importer == target and not deferred:
                seen |= loaded_by(each.target, seen)
    return seen


def test_every_package_is_in_a_layer():
    beside = {LAUNCHER, LAUNCHER_ENTRY, *ENGINES}
    assert set(map(package, NAMES)) == LAYER_OF.keys() | beside


def test_imports_point_down():
    assert len(OURS) > 200
    for each in OURS:
        ends = package(each.importer), package(each.target)
        beside = {LAUNCHER, LAUNCHER_ENTRY, *ENGINES} & set(ends)
        if not beside and ends[0] != ends[1]:
            upper, lower = map(LAYER_OF.get, ends)
            assert upper > lower, each


def test_the_launcher_stands_beside_the_layers():
    loaded = loaded_by("tfring.launcher.cli")
    packages = {package(module) for module in loaded & NAMES}
    assert packages <= LOADED_BY_LAUNCHER
    assert not loaded & HEAVY
    # Another job does not wait for the modules of an elastic one.
    assert not any("launcher.elastic" in module for module in loaded)
    for each in OURS:
        if package(each.importer) == LAUNCHER:
            assert package(each.target) in ALLOWED_IN_LAUNCHER, each
        elif package(each.importer) not in {LAUNCHER_ENTRY, *ENGINES}:
            assert package(each.target) != LAUNCHER, each


def test_engines_know_the_launcher_alone():
    for each in OURS:
        if package(each.importer) in ENGINES:
            known = {package(each.importer), LAUNCHER}
            assert package(each.target) in known, each


def test_no_module_imports_itself_by_way_of_others():
    below = {module: set() for module in NAMES}
    for each in OURS:
        if each.target != each.importer:
            below[each.importer].add(each.target)
    graphlib.TopologicalSorter(below).prepare()  # raises if there is a cycle


def test_optional_packages_are_imported_where_they_are_used():
    imports = [e for e in IMPORTS if e.target.split(".")[0] in OPTIONAL]
    assert {each.target.split(".")[0] for each in imports} == OPTIONAL
    assert [each for each in imports if not each.in_function] == []


@pytest.mark.parametrize(
    "each",
    [
        each
        for each in IMPORTS
        if each.in_function and package(each.importer) != LAUNCHER
    ],
    ids=lambda each: f"{each.importer} imports {each.target}",
)
def test_imports_in_functions_keep_something_heavy_out(each):
    assert HEAVY & loaded_by(each.target) - loaded_by(each.importer), (
        "it costs nothing: import it at the top of the file"
    )

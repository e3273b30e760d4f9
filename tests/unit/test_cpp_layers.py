"""Includes point down the layers, and are the deps in BUILD."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    *("base", "kernels", "transport", "algorithms", "nccl", "engine"),
    *("offload", "runtime", "capi", "ffi", "tf", "xla"),
)
# The modules that may include TensorFlow's headers.
FRAMEWORK_MODULES = ("tf", "xla")


def targets():
    """Returns the literal arguments of BUILD's cc_library rules, by name.

    BUILD's language is a part of Python's.
    """
    rules = {}
    for node in ast.walk(ast.parse((ROOT / "BUILD").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == (
            "cc_library"
        ):
            rule = {word.arg: word.value for word in node.keywords}
            rules[ast.literal_eval(rule["name"])] = rule
    return rules


def deps(target):
    return ast.literal_eval(targets()[target].get("deps", ast.List([])))


def target_of(path):
    """Returns BUILD's target for a file of tfring_ops/."""
    module = path.split("/")[1]
    is_mpi = path.startswith("tfring_ops/transport/mpi/")
    return "transport_mpi" if is_mpi else module


def files(*folders):
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                found.append(path.relative_to(ROOT).as_posix())
    return found


def includes(path):
    text = (ROOT / path).read_text()
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def test_every_module_is_a_target():
    modules = {path.split("/")[1] for path in files("tfring_ops")}
    assert modules == set(MODULES)
    assert set(MODULES) <= set(targets())


def test_every_source_is_in_its_target():
    for module in MODULES:
        sources = ast.unparse(targets()[module]["srcs"])
        below = "**/" if any((ROOT / "tfring_ops" / module).glob("*/")) else ""
        assert f"'tfring_ops/{module}/{below}*.cc'" in sources


@pytest.mark.parametrize("module", MODULES)
def test_deps_point_down(module):
    below = {f":{lower}" for lower in MODULES[: MODULES.index(module)]}
    if MODULES.index("transport") < MODULES.index(module):
        below.add(":transport_mpi")
    assert {dep for dep in deps(module) if dep.startswith(":")} <= below


@pytest.mark.parametrize("module", MODULES)
def test_includes_are_deps(module):
    """Each module names all its includes, also those that deps bring."""
    checked = 0
    for path in files(f"tfring_ops/{module}"):
        target = target_of(path)
        for include in includes(path):
            checked += 1
            if include.startswith("tfring_ops/"):
                needed = f":{target_of(include)}"
                assert needed == f":{target}" or needed in deps(target), (
                    f"{path} includes {include}: {needed} is not among the "
                    f"deps of {target} in BUILD"
                )
    assert checked


@pytest.mark.parametrize("module", MODULES)
def test_deps_are_includes(module):
    """BUILD names no deps beyond the includes."""
    for target in {target_of(path) for path in files(f"tfring_ops/{module}")}:
        included = {
            f":{target_of(include)}"
            for path in files(f"tfring_ops/{module}")
            if target_of(path) == target
            for include in includes(path)
            if include.startswith("tfring_ops/")
        }
        ours = {dep for dep in deps(target) if dep.startswith(":")}
        assert ours == included - {f":{target}"}


def test_only_the_mpi_transport_knows_mpi():
    knowing = {
        path
        for path in files("tfring_ops")
        if any(re.fullmatch(r"mpi(-ext)?\.h", name) for name in includes(path))
    }
    assert knowing
    for path in knowing:
        assert path.startswith("tfring_ops/transport/mpi/")
    assert not any(path.endswith(".h") for path in knowing)


def test_only_tf_and_xla_know_tensorflow():
    """XLA's FFI, whose headers need nothing else, other frameworks have too."""
    knowing = {
        path
        for path in files("tfring_ops", "tests/cpp")
        if any(
            name.startswith(("tensorflow/", "xla/", "tsl/"))
            and not name.startswith("xla/ffi/api/")
            for name in includes(path)
        )
    }
    assert knowing
    assert {path.split("/")[1] for path in knowing} <= set(FRAMEWORK_MODULES)
    xla = {
        path
        for path in knowing
        if any(
            name.startswith(("xla/", "tensorflow/compiler/"))
            for name in includes(path)
            # TensorFlow's own class of streams is there.
            if not name.startswith("xla/stream_executor/")
        )
    }
    assert {path.split("/")[1] for path in xla} <= {"xla"}


def test_includes_are_written_from_the_root():
    """Every include of ours is written from the root of the repository."""
    for path in files("tfring_ops", "tests/cpp"):
        text = (ROOT / path).read_text()
        for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            known = ("tfring_ops/", "absl/")
            known += ("tests/cpp/", "tests/fake_cuda/", "tests/fake_nccl/")
            framework = ("tensorflow/", "xla/", "tsl/")
            assert name.startswith(known + framework + ("gtest/", "gmock/")), (
                f"{path} includes {name}"
            )


def test_no_choice_by_if_inside_a_body():
    """Each choice at build time is a choice of files to compile."""
    for path in files("tfring_ops"):
        text = (ROOT / path).read_text()
        guard = path.upper().replace("/", "_").replace(".", "_") + "_"
        conditions = re.findall(r"^\s*#\s*(?:if|elif).*", text, re.MULTILINE)
        allowed = {f"#ifndef {guard}"}
        if path == "tfring_ops/transport/mpi/mpi.cc":
            # Each MPI defines its version in macros of its own.
            allowed |= {
                "#if defined(OMPI_MAJOR_VERSION)",
                "#elif defined(MPICH_VERSION)",
            }
        assert set(conditions) <= allowed, path

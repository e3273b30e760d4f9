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
    return [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".h", ".cc")
    ]


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
def test_deps_are_includes(module):
    """Each module names all its includes, and none beyond them."""
    included = {}
    for path in files(f"tfring_ops/{module}"):
        of_target = included.setdefault(target_of(path), set())
        for include in includes(path):
            if include.startswith("tfring_ops/"):
                of_target.add(f":{target_of(include)}")
    assert included
    for target, needed in included.items():
        ours = {dep for dep in deps(target) if dep.startswith(":")}
        assert ours == needed - {f":{target}"}


def knowing(pattern, *folders):
    """Returns the files that include what matches a pattern."""
    found = [
        path
        for path in files(*folders)
        if any(re.match(pattern, name) for name in includes(path))
    ]
    assert found
    return found


def test_only_the_mpi_transport_knows_mpi():
    for path in knowing(r"mpi(-ext)?\.h$", "tfring_ops"):
        assert path.startswith("tfring_ops/transport/mpi/")
        assert path.endswith(".cc")


def test_only_tf_and_xla_know_tensorflow():
    """XLA's FFI, whose headers need nothing else, other frameworks have too."""
    framework = r"(tensorflow|tsl|xla(?!/ffi/api))/"
    for path in knowing(framework, "tfring_ops", "tests/cpp"):
        assert path.startswith(("tfring_ops/tf/", "tfring_ops/xla/"))
    # TensorFlow's own class of streams is among XLA's.
    xla = r"xla/(?!ffi/api|stream_executor)|tensorflow/compiler/"
    for path in knowing(xla, "tfring_ops"):
        assert path.startswith("tfring_ops/xla/")


def test_includes_are_written_from_the_root():
    known = (
        *("tfring_ops/", "tests/cpp/", "tests/fake_cuda/", "tests/fake_nccl/"),
        *("absl/", "gmock/", "gtest/", "tensorflow/", "tsl/", "xla/"),
    )
    for path in files("tfring_ops", "tests/cpp"):
        text = (ROOT / path).read_text()
        for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            assert name.startswith(known), path


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

"""Includes point down the layers, and are the deps in BUILD."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    *("base", "kernels", "transport", "algorithms", "nccl", "engine"),
    *("offload", "runtime", "capi", "ffi", "tf", "xla"),
)


# These files are in no target of BUILD; only tools/native.mk has their
# dependencies.
NATIVE_ALONE = re.compile(
    r"tfring_ops/(kernels/cuda_cubins|xla/pins)\.cc"
    r"|tests/cpp/((cuda|large)_\w+|\w+_timing|c_status)_test\.cc"
    r"|tests/cpp/((mpi|nccl)_\w+|device_sets)\.(cc|h)"
)


def targets():
    """Returns the arguments of BUILD's rules by name, with globs as files.

    BUILD's language is a part of Python's.
    """
    found = {}

    def rule(name, **arguments):
        assert name not in found
        found[name] = arguments

    def matches(patterns):
        paths = [path for each in patterns for path in ROOT.glob(each)]
        return {path.relative_to(ROOT).as_posix() for path in paths}

    known = {
        **dict.fromkeys(("cc_binary", "cc_library", "cc_test"), rule),
        **dict.fromkeys(("config_setting", "package"), lambda **_: None),
        "glob": lambda some, exclude=(): sorted(
            matches(some) - matches(exclude)
        ),
        # The tests look at all branches of a `select` together.
        "select": lambda choices: sorted(set().union(*choices.values())),
    }
    exec((ROOT / "BUILD").read_text(), known)
    return found


TARGETS = targets()


def files_of(target):
    return [
        path
        for kind in ("srcs", "hdrs")
        for path in TARGETS[target].get(kind, ())
    ]


TARGET_OF = {path: target for target in TARGETS for path in files_of(target)}


def deps(target):
    """Returns the targets of BUILD that a target depends on."""
    return {dep for dep in TARGETS[target].get("deps", ()) if dep[0] == ":"}


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
    for path, target in TARGET_OF.items():
        if path.startswith("tfring_ops/transport/mpi/"):
            assert target == "transport_mpi"
        elif path.startswith("tfring_ops/"):
            assert target == path.split("/")[1]


def test_every_source_is_in_one_target():
    of_targets = [path for target in TARGETS for path in files_of(target)]
    assert len(of_targets) == len({*of_targets})
    expected = {
        path
        for path in files("tfring_ops", "tests/cpp")
        if not NATIVE_ALONE.fullmatch(path)
    }
    assert {*of_targets} - {*files("tests/gpu/fake/cuda")} == expected


@pytest.mark.parametrize("module", MODULES)
def test_deps_point_down(module):
    below = {f":{lower}" for lower in MODULES[: MODULES.index(module)]}
    if MODULES.index("transport") < MODULES.index(module):
        below.add(":transport_mpi")
    assert deps(module) <= below


@pytest.mark.parametrize("target", TARGETS)
def test_deps_are_includes(target):
    """Each target names all its includes, and a library none beyond them."""
    needed = {
        f":{TARGET_OF[include]}"
        for path in files_of(target)
        for include in includes(path)
        if include.startswith(("tfring_ops/", "tests/"))
    } - {f":{target}"}
    assert needed <= deps(target)
    if target in {*MODULES, "transport_mpi", "test_helpers"}:
        assert needed == deps(target)


def test_bazel_compiles_the_kernels_as_make_does():
    native = (ROOT / "tools/native.mk").read_text().replace("\\\n", "")
    avx2, more = re.findall(
        r"^AVX\d+_FLAGS := (?:\$\(AVX2_FLAGS\))?(.*)$", native, re.MULTILINE
    )
    flags_of = {
        r"\.cc$": "-ffp-contract=off",
        r"_avx(2|512)\.cc$": avx2,
        r"_avx512\.cc$": more,
    }
    _, *lines = (ROOT / ".bazelrc").read_text().splitlines()
    assert lines == [
        f"build --per_file_copt=tfring_ops/kernels/cpu_.*{end}@"
        + ",".join(flags.split())
        for end, flags in flags_of.items()
    ]


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
    """Other frameworks have XLA's FFI too; its headers need nothing else."""
    framework = r"(tensorflow|tsl|xla(?!/ffi/api))/"
    for path in knowing(framework, "tfring_ops", "tests/cpp"):
        assert path.startswith(("tfring_ops/tf/", "tfring_ops/xla/"))
    # TensorFlow's own class of streams is among XLA's.
    xla = r"xla/(?!ffi/api|stream_executor)|tensorflow/compiler/"
    for path in knowing(xla, "tfring_ops"):
        assert path.startswith("tfring_ops/xla/")


def test_includes_are_written_from_the_root():
    known = (
        *("tfring_ops/", "tests/cpp/", "tests/gpu/fake/"),
        *("absl/", "gmock/", "gtest/", "tensorflow/", "tsl/", "xla/"),
    )
    for path in files("tfring_ops", "tests/cpp"):
        text = (ROOT / path).read_text()
        for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
            assert name.startswith(known), path


def test_types_of_headers_have_names_of_their_own():
    """The linker may mix up the inline functions of types with one name."""
    names = [
        name
        for path in files("tfring_ops")
        if path.endswith(".h")
        for name in re.findall(
            r"^(?:class|struct|enum class) (\w+)[^;]*?\{",
            (ROOT / path).read_text(),
            re.MULTILINE,
        )
    ]
    assert len(names) > 100
    assert sorted(names) == sorted({*names})


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

"""XLA's schedule of a training step on a GPU, found without a GPU.

Compiles the modules of tests/gpu/schedule_step.py for an H100 with JAX's XLA
plugin for CUDA, and checks the positions of our custom calls. `make
gpu-schedule` runs it in a Python with JAX for the CPU:

    python tests/gpu/schedule.py COMPILE_HLO PLUGIN MODULES
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import NamedTuple

from jax._src import compiler

try:
    from jaxlib import _hlo
except ImportError:
    print("left out: JAX for this Python cannot read a module")
    sys.exit(0)

# Facts of an H100 that the compiler asks for.
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  device_memory_size: 84942979072  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  threads_per_warp: 32  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  shared_memory_per_block: 49152  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# They do nothing at run time.
NAMES_ALONE = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}


class Instruction(NamedTuple):
    """A line of the program, which is done in the order of the lines."""

    name: str
    opcode: str
    operands: list[str]
    target: str  # of a custom call

    @property
    def is_start(self) -> bool:
        return self.target == "tfring_start"

    @property
    def is_done(self) -> bool:
        return self.target == "tfring_done"

    @property
    def is_rename(self) -> bool:
        """Whether the result is the operand, under another name."""
        return self.opcode in {"bitcast", "get-tuple-element"} or (
            self.target in {"Pin", "Unpin"}  # tfring_ops/xla/pins.h
        )


def compiled(library: ctypes.CDLL, plugin: str, text: str) -> str:
    """The module that the GPU would run."""
    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, device_assignment=[[0]]
    ).SerializeAsString()
    result, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.compile_hlo.restype = ctypes.c_char_p
    error = library.compile_hlo(
        plugin.encode(),
        H100.encode(),
        module,
        ctypes.c_size_t(len(module)),
        options,
        ctypes.c_size_t(len(options)),
        ctypes.byref(result),
        ctypes.byref(size),
    )
    if error is not None:
        raise RuntimeError(error.decode())
    optimized = first_field(ctypes.string_at(result.value, size.value))
    return _hlo.HloModule.from_serialized_hlo_module_proto(
        optimized
    ).to_string()


def first_field(message: bytes) -> bytes:
    """The module in an xla.HloModuleProtoWithConfig."""
    assert message[0] == 1 << 3 | 2, "not a message in field 1"
    size, at = 0, 1
    while True:
        size |= (message[at] & 0x7F) << 7 * (at - 1)
        at += 1
        if message[at - 1] < 0x80:
            return message[at : at + size]


def program(text: str) -> list[Instruction]:
    """The instructions of the entry computation."""
    assert "is_scheduled=true" in text
    instructions = []
    for line in text[text.index("\nENTRY ") :].splitlines():
        # The type may be a tuple's, with comments in it.
        found = re.match(
            # "b(" is the type of a pinned tensor.
            r"\s+(?:ROOT )?%?([\w.-]+) = .*? ([a-z][a-z-]+)\((.*?)\)",
            line,
        )
        if found is None:
            continue
        name, opcode, operands = found.groups()
        target = re.search(r'custom_call_target="([^"]*)"', line)
        instructions.append(
            Instruction(
                name,
                opcode,
                re.findall(r"%([\w.-]+)", operands),
                target[1] if target else "",
            )
        )
    return instructions


class Step:
    """A compiled step."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.program = program(text)
        self.place = {x.name: i for i, x in enumerate(self.program)}
        self.starts = [x for x in self.program if x.is_start]
        self.dones = [x for x in self.program if x.is_done]

    def made_by(self, name: str) -> Instruction:
        """Returns the producer of a value, past instructions that rename it."""
        found = self.program[self.place[name]]
        while found.is_rename:
            found = self.program[self.place[found.operands[0]]]
        return found

    def work(self, first: int, last: int) -> list[Instruction]:
        """Returns the instructions that compute between two places."""
        return [
            x
            for x in self.program[first + 1 : last]
            if x.opcode not in NAMES_ALONE and not x.is_rename
        ]

    def check_all_calls_are_in_the_program(self, calls: int) -> None:
        """No call is in a command buffer or in a loop, and none is missing."""
        assert len(self.starts) == len(self.dones) == calls
        assert len(re.findall('target="tfring_', self.text)) == 2 * calls

    def check_starts_follow_their_gradients(self) -> None:
        """Each start directly follows its last gradient, in chain order."""
        before = ""
        for start in self.starts:
            *gradients, previous = start.operands
            ready = max(self.place[self.made_by(x).name] for x in gradients)
            if before:
                assert self.made_by(previous).name == before
                ready = max(ready, self.place[before])
            before = start.name
            between = self.work(ready, self.place[start.name])
            assert not between, f"{start.name} is behind {between}"

    def check_backpropagation_goes_on(self) -> None:
        """Work continues after the first start; all dones follow the last."""
        first, last = (self.place[self.starts[i].name] for i in (0, -1))
        between = [x for x in self.work(first, last) if not x.is_start]
        assert len(between) > 3, f"{between} alone are beside collectives"
        assert all(self.place[x.name] > last for x in self.dones)

    def check_nothing_is_copied(self) -> None:
        """No copy is before a start, before its done, or after its done."""
        for call in self.starts + self.dones:
            for operand in call.operands:
                assert not self.made_by(operand).opcode.startswith("copy")
        for done in self.dones:
            *buffers, _, _ = done.operands
            assert all(self.made_by(x).is_start for x in buffers)
        for x in self.program:
            copied = x.opcode.startswith("copy") and self.made_by(x.operands[0])
            assert not (copied and (copied.is_start or copied.is_done)), x


def main() -> None:
    """Compiles and checks every module."""
    library, plugin, modules = sys.argv[1:]
    texts = sorted(Path(modules).glob("*.hlo"))
    assert texts
    for path in texts:
        text = path.read_text()
        step = Step(compiled(ctypes.CDLL(library), plugin, text))
        calls = text.count('custom_call_target="tfring_start"')
        assert calls > 1, f"{path.name} has one bucket"
        step.check_all_calls_are_in_the_program(calls)
        step.check_starts_follow_their_gradients()
        step.check_backpropagation_goes_on()
        step.check_nothing_is_copied()
        print(f"{path.stem}: {calls} starts, {len(step.program)} instructions")


if __name__ == "__main__":
    main()

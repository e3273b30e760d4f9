"""Measures the kernels and the rings on this machine's GPU.

  .venv/bin/python benchmarks/gpu.py --json=gpu.json

A figure is the share of a bound that follows from copies measured in the same
run. c, d and h are the bytes per second of copies within the GPU's memory, to
pinned memory of the host, and from there; B is the size of the tensor, which
each of two ranks has on one and the same GPU:

- pack, unpack: each byte is read once and written once, as by a copy: B / c.
- ipc: a rank copies a half into the slots that its neighbour reads (2 bytes of
  traffic for each of its own), reduces the half that it reads there (3), copies
  that into slots (2) and copies the other half out of them (2): 9 B / 2, and
  9 B for both, which take turns. A copy moves 2 c: 9 B / 2 c.
- staged: a rank moves B to the host and B from there, both at once, and so does
  the other, by the same link: the longer one of 2 B / d and 2 B / h.
- keras: the step of a model with the plain optimizer, on one rank; left out
  without TensorFlow.

The ring is measured at smaller sizes, too, beside a copy of as many bytes in
the same job.

If two ranks can have a GPU each, the ring and NCCL are measured there, too, in
turn. NCCL takes no two ranks on one GPU.

Without a GPU, the driver and NCCL are the fake ones of tests/gpu/fake, and the
model is on the CPU: --bytes=1m shows that all of this runs, and no more.
FAKE_CUDA_OWN_GPUS=1 gives each rank a fake GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import bare_gpu  # noqa: E402

# The least shares that the project accepts. Packing leaves half of the GPU to
# backpropagation. IPC's share holds with Multi-Process Service.
GOALS = {"pack": 0.5, "unpack": 0.5, "ipc": 0.4, "staged": 0.7, "keras": 0.97}
_ROUNDS, _REPETITIONS = 5, 5
_TRANSPORTS = ("ipc", "1"), ("staged", "0")  # and TFRING_CUDA_IPC
_PACKED_TENSORS = 256
# The sizes of the last table are parts of --bytes.
_SIZE_DIVISORS = (1, 16, 256)


def seconds_of(
    work: Callable[[], object], finish: Callable[[], object]
) -> float:
    """Returns the seconds of one `work`: the median of some rounds."""
    work()
    finish()
    rounds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(_REPETITIONS):
            work()
        finish()
        rounds.append((time.perf_counter() - begin) / _REPETITIONS)
    return float(np.median(rounds))


def measure_copies(count_bytes: int) -> dict[str, float]:
    """Returns seconds of copies and of packing many tensors; on one rank."""
    gpu = bare_gpu.Gpu()
    a, b = gpu.memory(count_bytes), gpu.memory(count_bytes)
    host = gpu.pinned(count_bytes)
    count = count_bytes // 4 // _PACKED_TENSORS
    counts = _PACKED_TENSORS * [count]
    of_a, of_b = (
        [memory.address + 4 * count * i for i in range(_PACKED_TENSORS)]
        for memory in (a, b)
    )
    works = {
        "copy": lambda: gpu.copy(b.address, a.address, count_bytes),
        "to host": lambda: gpu.to_host(host, a.address, count_bytes),
        "from host": lambda: gpu.from_host(a.address, host, count_bytes),
        "pack": lambda: gpu.copy_pieces(of_b, of_a, counts, "float32"),
        "unpack": lambda: gpu.copy_pieces(of_a, of_b, counts, "float32"),
    }
    return {name: seconds_of(work, gpu.finish) for name, work in works.items()}


def measure_allreduce(count_bytes: int) -> dict[str, float]:
    """Returns seconds of an allreduce of float32. Collective."""
    gpu = bare_gpu.Gpu()
    world = bare_gpu.start_engine()
    memory = gpu.array(np.zeros(count_bytes // 4, np.float32))
    world.Barrier()
    seconds = seconds_of(
        lambda: gpu.allreduce("all", [memory.address], [count_bytes // 4]),
        lambda: None,
    )
    bare_gpu.stop_engine()
    return {"allreduce": seconds}


def measure_sizes(count_bytes: int) -> dict[str, float]:
    """Returns seconds of an allreduce and a copy by size. Takes two ranks."""
    gpu = bare_gpu.Gpu()
    world = bare_gpu.start_engine()
    memory = gpu.array(np.zeros(count_bytes // 4, np.float32))
    copied = gpu.memory(count_bytes)
    seconds = {}
    for divisor in _SIZE_DIVISORS:
        size = count_bytes // divisor
        world.Barrier()
        if world.rank == 0:
            seconds[f"copy {divisor}"] = seconds_of(
                lambda size=size: gpu.copy(
                    copied.address, memory.address, size
                ),
                gpu.finish,
            )
        world.Barrier()
        seconds[f"allreduce {divisor}"] = seconds_of(
            lambda size=size: gpu.allreduce(
                f"of {size}", [memory.address], [size // 4]
            ),
            lambda: None,
        )
    bare_gpu.stop_engine()
    return seconds


def measure_keras(count_bytes: int) -> dict[str, float]:
    """Returns seconds of a step of four dense layers of `count_bytes`."""
    import keras
    import tensorflow as tf

    import tfring

    tfring.init()
    width = int((count_bytes / 4 / 4) ** 0.5)
    x = tf.random.normal([1024, width])
    steps = {}
    for name in ("plain", "ours"):
        optimizer = keras.optimizers.SGD(1e-6, momentum=0.9)
        if name == "ours":
            optimizer = tfring.DistributedOptimizer(optimizer)
        model = keras.Sequential(
            [keras.Input((width,))]
            + [keras.layers.Dense(width) for _ in range(4)]
        )
        model.compile(optimizer, "mse")
        steps[name] = model.train_on_batch
    # The two take turns because the speed of a machine drifts.
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_ROUNDS):
        for name, step in steps.items():
            seconds[name].append(
                seconds_of(lambda step=step: step(x, x), lambda: None)
            )
    return {name: float(np.median(of)) for name, of in seconds.items()}


def nccl_version(_count_bytes: int) -> dict[str, float]:
    """Returns NCCL's version; the library needs MPI, and so a job."""
    return {"version": bare_gpu.nccl_version()}


MEASURES = {
    "nccl version": nccl_version,
    "copies": measure_copies,
    "allreduce": measure_allreduce,
    "sizes": measure_sizes,
    "keras": measure_keras,
}


def run(
    measure: str,
    ranks: int,
    count_bytes: int,
    *,
    on_one_gpu: bool = True,
    **environment: str,
) -> dict[str, float]:
    """Measures in a job of its own; returns what rank 0 found."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "seconds.json")
        command = [
            *(sys.executable, "-m", "tfring.run", "-np", str(ranks)),
            *(sys.executable, __file__, f"--bytes={count_bytes}"),
            *(f"--measure={measure}", f"--json={path}"),
        ]
        # Without this variable each rank has a GPU of its own.
        defaults = {"CUDA_VISIBLE_DEVICES": "0"} if on_one_gpu else {}
        subprocess.run(
            command,
            check=True,
            env={**defaults, **os.environ, "PYTHONPATH": str(ROOT)}
            | environment,
        )
        return dict(json.loads(path.read_text()))


def why_not_nccl() -> str:
    """Returns why two ranks cannot use NCCL; "" if they can."""
    if run("nccl version", 1, 0)["version"] == 0:
        return "there is no NCCL of version 2.14 or later"
    if bare_gpu.is_fake():
        if os.environ.get("FAKE_CUDA_OWN_GPUS") != "1":
            return "the ranks share the fake GPU without FAKE_CUDA_OWN_GPUS=1"
    elif bare_gpu.number_of_gpus() < 2:
        return "it takes a GPU for each of two ranks, and there is one"
    return ""


def of_own_gpus(count_bytes: int) -> dict[str, float]:
    """Returns seconds by the ring and by NCCL, with a GPU for each rank."""
    return {
        f"{backend}, a GPU each": run(
            "allreduce",
            2,
            count_bytes,
            on_one_gpu=False,
            TFRING_GPU_BACKEND=backend,
        )["allreduce"]
        for backend in ("ring", "nccl")
    }


def of_sizes(count_bytes: int) -> list[str]:
    """Returns rows: transport, size, GB/s of the ring and of a copy."""
    rows = []
    for transport, ipc in _TRANSPORTS:
        seconds = run("sizes", 2, count_bytes, TFRING_CUDA_IPC=ipc)
        for divisor in _SIZE_DIVISORS:
            size = count_bytes / divisor
            rates = (
                f"{size / seconds[f'{what} {divisor}'] / 1e9:.2f}"
                for what in ("allreduce", "copy")
            )
            rows.append(
                f"| {' | '.join((transport, f'{size / 2**20:g}', *rates))} |"
            )
    return rows


def shares(count_bytes: int) -> tuple[dict[str, float], dict[str, float]]:
    """Returns seconds, and the shares of the bounds, as explained above."""
    seconds = run("copies", 1, count_bytes)
    copy = seconds["copy"]
    host = max(seconds["to host"], seconds["from host"])
    for name, ipc in _TRANSPORTS:
        seconds[name] = run("allreduce", 2, count_bytes, TFRING_CUDA_IPC=ipc)[
            "allreduce"
        ]
    found = {
        "pack": copy / seconds["pack"],
        "unpack": copy / seconds["unpack"],
        "ipc": 4.5 * copy / seconds["ipc"],
        "staged": 2 * host / seconds["staged"],
    }
    if importlib.util.find_spec("tensorflow"):
        keras = run("keras", 1, count_bytes)
        seconds |= {f"keras, {name}": value for name, value in keras.items()}
        found["keras"] = keras["plain"] / keras["ours"]
    return seconds, found


def number_of_bytes(text: str) -> int:
    """Returns the number that a text such as "256m" stands for."""
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    unit = units.get(text[-1:].lower())
    return int(text[:-1]) * unit if unit else int(text)


def main() -> None:
    """Prints the table, and writes --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=number_of_bytes, default="256m")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        found = MEASURES[arguments.measure](arguments.bytes)
        if bare_gpu.rank() == 0:
            arguments.json.write_text(json.dumps(found))
        return

    seconds, found = shares(arguments.bytes)
    left_out = why_not_nccl()
    if not left_out:
        seconds |= of_own_gpus(arguments.bytes)
    fake = bare_gpu.is_fake()
    print(f"{arguments.bytes / 2**20:g} MiB on {bare_gpu.name()}\n")
    print("| | ms | GB/s |\n|---|---|---|")
    for name, value in seconds.items():
        rate = arguments.bytes / value / 1e9
        shown = "" if name.startswith("keras") else f"{rate:.1f}"
        print(f"| {name} | {1e3 * value:.3f} | {shown} |")
    print("\n| | share of the bound | goal |\n|---|---|---|")
    for name, share in found.items():
        print(f"| {name} | {share:.0%} | {GOALS[name]:.0%} |")
    rows = of_sizes(arguments.bytes)
    print("\n| | MiB | GB/s | a copy's GB/s |")
    print("|---|---|---|---|", *rows, sep="\n")
    if left_out:
        print(f"\nNCCL is left out: {left_out}.")
    if fake:
        print("\nOn the fake device: none of these is a measurement.")
    if arguments.json:
        figures = {
            "device": bare_gpu.name(),
            "bytes": arguments.bytes,
            "seconds": seconds,
            "shares": found,
        }
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

r"""Measures the memory that saving and loading a sharded model takes.

  tfringrun -np 2 python benchmarks/sharded_files.py --megabytes=512

The model is a stack of square matrices, its optimizer Adam. The program reports
the growth of a rank's resident set from before a save or a load to its peak
(VmHWM), so the rank's part of the model is not counted. A file has three times
the bytes of the weights, and one variable has 4 `width` squared bytes.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import program
import tensorflow as tf

import tfring
from tfring.bench.measure import cpu_seconds, memory_bytes
from tfring.bench.statistics import Row, Spread


def scope() -> Any:
    return tfring.shard_parameters(min_elements=1024)


def build(options: argparse.Namespace) -> Any:
    """Returns a sharded model with an optimizer, both in memory."""
    width = options.width
    count = max(1, options.megabytes * 10**6 // (4 * width**2))
    with scope():
        model = keras.Sequential(
            [
                keras.Input((width,)),
                *(
                    keras.layers.Dense(width, use_bias=False)
                    for _ in range(count)
                ),
            ]
        )
    optimizer = tfring.DistributedOptimizer("adam", shard_states=True)
    model.compile(optimizer, "mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    for variable in optimizer.variables[2:]:
        variable.assign(tf.ones(variable.shape, variable.dtype))
    return model


def actions(
    model: Any, folder: Path
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the saves on rank 0, and the loads on all ranks."""

    def save(by: Callable[[Any], None], name: str) -> None:
        with tfring.whole_states(model, root_rank=0):
            if tfring.rank() == 0:
                by(folder / name)

    def load() -> object:
        with scope():
            return tfring.load_model(folder / "a.keras", shard_states=True)

    weights = "a.weights.h5"
    yield f"save {weights}", lambda: save(model.save_weights, weights)
    yield f"load {weights}", lambda: model.load_weights(folder / weights)
    yield "save a.keras", lambda: save(model.save, "a.keras")
    yield "load_model a.keras", load


def measure(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Yields the memory and the time of an action, on each rank."""
    model = build(options)
    for case, act in actions(model, folder):
        gc.collect()
        tfring.barrier()
        # Writing 5 resets VmHWM.
        Path("/proc/self/clear_refs").write_text("5")
        before, cpu, start = memory_bytes("VmRSS"), cpu_seconds(), clock()
        made = act()
        seconds, cpu = clock() - start, cpu_seconds() - cpu
        own = seconds, cpu, memory_bytes("VmHWM") - before
        del made
        for rank, (seconds, cpu, added) in enumerate(
            tfring.allgather_object(own)
        ):
            yield Row(
                case,
                0,
                f"rank {rank}",
                Spread.of([seconds]),
                cpu,
                added_bytes=added,
            )


clock = time.perf_counter


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=512, help="weights")
    parser.add_argument("--width", type=int, default=2048, help="of a matrix")
    options = parser.parse_args()
    tfring.init()
    with tempfile.TemporaryDirectory(dir=".") as own:
        folder = tfring.broadcast_object(Path(own).absolute())
        rows = list(measure(options, folder))
        tfring.barrier()
    program.show_rows(options, rows)


if __name__ == "__main__":
    main()

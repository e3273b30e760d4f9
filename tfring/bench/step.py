"""`tfring-bench step`: a training step of all ranks, against one rank alone."""

from __future__ import annotations

import functools
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring
from tfring._core import native
from tfring.bench.exchanges import Exchange
from tfring.bench.measure import cpu_seconds, sent_bytes
from tfring.bench.statistics import Row, Spread

_WARM_UP_STEPS = 3
# Interval at which a rank without a part in a turn checks whether it is over.
_LOOK_SECONDS = 0.002


def use_one_core() -> None:
    """Binds this process to a core of its own, and TensorFlow to one thread.

    Call it before TensorFlow runs anything. With more ranks than cores, some
    ranks share a core.
    """
    cores = sorted(os.sched_getaffinity(0))
    world = native.mpi().COMM_WORLD
    local = world.Split_type(native.mpi().COMM_TYPE_SHARED)
    # tfringrun may have bound the ranks already, each to its own.
    apart = len(set(local.allgather(tuple(cores)))) == local.size > 1
    # Hosts that are network namespaces of one machine share its cores.
    turn = world.rank if local.size == 1 else local.rank
    core = cores[0 if apart else turn % len(cores)]
    local.Free()
    # Existing threads, such as MPI's, are bound to the same core.
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        os.sched_setaffinity(int(thread), {core})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def measure_step(
    model: str,
    *,
    batch_size: int,
    jit_compile: bool,
    rounds: int,
    steps: int,
    width: int,
    ways: Sequence[Exchange],
    progress: Callable[[], None] = lambda: None,
) -> tuple[list[Row], dict[str, float]]:
    """Times training steps: together, one rank alone, all of them apart.

    Collective. Rounds are interleaved, as in `measure`.

    Args:
        model: "mlp" or "cnn".
        batch_size: The batch size of each rank.
        jit_compile: If True, XLA compiles the step.
        rounds: The number of turns of each of the three.
        steps: The number of training steps in a turn, at least: a turn has
            whole rounds.
        width: The width of the hidden layers of "mlp".
        ways: How the ranks train together; each has turns of its own.
        progress: Called after each round.

    Returns:
        A row for each way and for the other two, and figures by their names.
    """
    world = native.mpi().COMM_WORLD
    make = functools.partial(trainer, model, batch_size, jit_compile, width)
    apart = make(None)
    # The copies train alone on purpose.
    warnings.simplefilter("ignore", tfring.NotDistributedWarning)
    together = {
        ", ".join(filter(None, [f"{world.size} ranks together", way.name])): (
            make(way.options()),
            True,
            -(-steps // way.every) * way.every,
        )
        for way in ways
    }
    turns = together | {
        "1 rank alone": (apart, world.rank == 0, steps),
        f"{world.size} copies apart": (apart, True, steps),
    }
    for train, _, _ in turns.values():
        for _ in range(_WARM_UP_STEPS):
            train()
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    cpu: dict[str, list[float]] = {name: [] for name in turns}
    sent: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, (train, takes_part, count) in turns.items():
            world.Barrier()
            sent_before = sent_bytes()
            cpu_before, start = cpu_seconds(), time.perf_counter()
            for _ in range(count if takes_part else 0):
                train()
            taken = (time.perf_counter() - start) / count
            cpu_taken = (cpu_seconds() - cpu_before) / count
            sent_in_step = (sent_bytes() - sent_before) / count
            _wait_for_all(world)
            of_ranks = world.allgather((taken, cpu_taken, sent_in_step))
            if name == "1 rank alone":
                of_ranks = of_ranks[:1]
            seconds[name].append(max(wall for wall, _, _ in of_ranks))
            cpu[name].append(statistics.mean(used for _, used, _ in of_ranks))
            sent[name].append(max(sent for _, _, sent in of_ranks))
        progress()
    rows = [
        Row(
            f"{model}{' jit' if jit_compile else ''}",
            0,
            name,
            Spread.of(seconds[name]),
            statistics.median(cpu[name]),
            sent_bytes=statistics.median(sent[name]),
        )
        for name in turns
    ]
    all_together, *_, alone, all_apart = rows
    return rows, {
        # With a batch for each rank: 1 if communication costs nothing.
        "scaling efficiency": (
            alone.seconds.median / all_together.seconds.median
        ),
        # The best that the machine can give.
        "scaling efficiency of copies apart": (
            alone.seconds.median / all_apart.seconds.median
        ),
        # As the median of the rounds' own.
        "scaling efficiency by that of copies apart": statistics.median(
            apart / together
            for apart, together in zip(
                seconds[all_apart.who],
                seconds[all_together.who],
                strict=True,
            )
        ),
        "CPU seconds of communication per step and rank": (
            all_together.cpu_seconds - all_apart.cpu_seconds
        ),
    }


def _wait_for_all(world: Any) -> None:
    # MPI's own barrier would keep the core of a rank that waits busy.
    barrier = world.Ibarrier()
    while not barrier.Test():
        time.sleep(_LOOK_SECONDS)


def trainer(
    name: str,
    batch_size: int,
    jit_compile: bool,
    width: int,
    options: Mapping[str, Any] | None,
) -> Callable[[], Any]:
    """Returns a function that does a training step on this rank's own batch.

    `options` are for `DistributedOptimizer`; with None it trains alone. See
    `measure_step` for the other arguments.
    """
    keras.utils.set_random_seed(0)
    layers = keras.layers
    if name == "mlp":  # at a width of 2048, 40 MB of gradients
        shape: tuple[int, ...] = (784,)
        hidden = [layers.Dense(width, "relu") for _ in range(3)]
    else:  # 4.8 MB, most of it in the first dense layer
        shape = (28, 28, 1)
        hidden = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, "relu"),
        ]
    model = keras.Sequential([keras.Input(shape), *hidden, layers.Dense(10)])
    optimizer = keras.optimizers.SGD(1e-3)
    if options is not None:
        optimizer = tfring.DistributedOptimizer(optimizer, **options)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    random = np.random.default_rng(tfring.rank())
    x = tf.constant(random.random((batch_size, *shape), np.float32))
    y = tf.constant(random.integers(10, size=batch_size))
    return lambda: model.train_on_batch(x, y)

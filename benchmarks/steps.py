"""Times training steps: all ranks, one alone, and copies that do not talk.

  tfringrun -np 2 .venv/bin/python benchmarks/steps.py --model=cnn
  tfringrun -np 2 .venv/bin/python benchmarks/steps.py --sync=none,diloco:50

Each rank is bound to one core. The scaling efficiency is the time of one rank
alone over that of all together, each with a batch of its own; the copies say
how much the machine itself costs.
"""

import argparse
import functools
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import program
import tensorflow as tf
from exchanges import Exchange, add_flags, exchanges

import tfring
from tfring._core import native
from tfring.bench.measure import costs_of
from tfring.bench.statistics import Costs, Row, seconds_of

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
    local.Free()
    bind(0 if apart else turn)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def bind(number: int) -> None:
    """Binds this process to one of its cores, with its existing threads."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        os.sched_setaffinity(int(thread), {cores[number % len(cores)]})


def measure(
    options: argparse.Namespace, exchanges: Sequence[Exchange]
) -> tuple[list[Row], dict[str, float]]:
    """Times training steps: together, one rank alone, all of them apart.

    Collective. Each exchange has turns of its own. The turns are interleaved:
    each has one in each round. A turn has whole rounds of its exchange.

    Returns:
        A row for each exchange and for the other two, and figures by their
        names.
    """
    world = native.mpi().COMM_WORLD
    make = functools.partial(
        trainer, options.model, options.batch_size, options.jit, options.width
    )
    apart = make(None)
    # The copies train alone on purpose.
    warnings.simplefilter("ignore", tfring.NotDistributedWarning)
    steps = options.steps
    turns = {
        ", ".join(filter(None, [f"{world.size} ranks together", each.name])): (
            make(each.options()),
            True,
            -(-steps // each.every) * each.every,
        )
        for each in exchanges
    } | {
        "1 rank alone": (apart, world.rank == 0, steps),
        f"{world.size} copies apart": (apart, True, steps),
    }
    for train, _, _ in turns.values():
        for _ in range(_WARM_UP_STEPS):
            train()
    taken: dict[str, list[list[Costs]]] = {name: [] for name in turns}
    for _ in range(options.rounds):
        for name, (train, takes_part, count) in turns.items():
            costs = _take_turn(world, train, takes_part, count)
            taken[name].append(costs[:1] if name == "1 rank alone" else costs)
    case = f"{options.model}{' jit' if options.jit else ''}"
    rows = [Row.of_turns(case, 0, name, own) for name, own in taken.items()]
    return rows, _efficiencies(rows, taken)


def _efficiencies(
    rows: Sequence[Row], taken: Mapping[str, Sequence[Sequence[Costs]]]
) -> dict[str, float]:
    all_together, *_, alone, all_apart = rows
    return {
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
                seconds_of(taken[all_apart.who]),
                seconds_of(taken[all_together.who]),
                strict=True,
            )
        ),
        "CPU seconds of communication per step and rank": (
            all_together.cpu_seconds - all_apart.cpu_seconds
        ),
    }


def _take_turn(
    world: Any, train: Callable[[], Any], takes_part: bool, count: int
) -> list[Costs]:
    """Returns what a step has cost each rank."""
    world.Barrier()
    costs = costs_of(train if takes_part else lambda: None, count)
    _wait_for_all(world)
    return world.allgather(costs)


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
    the flags for the other arguments.
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


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--batch_size", type=int, default=64, help="of a rank")
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    parser.add_argument("--jit", action="store_true", help="by XLA")
    parser.add_argument(
        "--width", type=int, default=2048, help="of the hidden layers of mlp"
    )
    add_flags(parser)
    options = parser.parse_args()
    chosen = exchanges(options)
    use_one_core()
    tfring.init()
    if tfring.size() == 1:
        raise SystemExit("One rank has nobody to train with: -np 2.")
    rows, summary = measure(options, chosen)
    program.show_rows(options, rows, **summary)


if __name__ == "__main__":
    main()

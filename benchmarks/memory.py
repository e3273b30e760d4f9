r"""Measures peak memory and time of memory-saving training steps.

  .venv/bin/python benchmarks/memory.py --model=vgg16 --policies=none,all,auto
  tfringrun -np 2 .venv/bin/python benchmarks/memory.py \
      --model=gpt384 --batch_size=2 --policies=whole,sharded,parameters+all
  .venv/bin/python benchmarks/memory.py --hosts=2 --ranks=2 --rate_mbit=1000 \
      --model=gpt384 --batch_size=2 --policies=whole,parameters,hybrid

Each policy has a model of its own. First its peak is measured, while the other
models rest; then the policies are timed in turn, round by round. The peak is
the most that TensorFlow's allocator has allocated at once for the policy, with
weights and batch. On a CPU the allocator leaves out tensors below 256 KiB, and
may give a tensor up to twice its bytes, such as the temporary memory of
--jit_compile. A policy runs on each rank alone, without collectives, if it has
no optimizer.

With an optimizer, the rows also show this rank's bytes of weights, of states,
and of the gradients that it keeps until the update. The rest of the peak is
feature maps, gathered weights and gradients in flight.
"""

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import program
import tensorflow as tf
from memory_models import LETTERS, MODELS
from slow_links import sent_by_interfaces

import tfring
from tfring._core import native
from tfring._gradients.shares import Layout
from tfring._memory.parameters import parameter_share
from tfring.bench import plots, report, sizes
from tfring.bench.measure import costs_of
from tfring.bench.statistics import Costs, Row, Spread

# The policies that train by an optimizer, on all ranks together.
OPTIMIZERS = ("whole", "sharded", "parameters", "hybrid")

# With a budget the second step has a plan, and tfring prints after the third.
_WARM_UP_STEPS = 4


@dataclasses.dataclass
class _Policy:
    who: str
    step: Callable[[], Any]
    peak_bytes: int
    kinds: dict[str, int]  # bytes of this rank, for an optimizer
    # For each round the costs of a step, by rank.
    turns: list[list[Costs]]


def measure(
    options: argparse.Namespace,
) -> tuple[list[Row], dict[str, float]]:
    """Measures training steps under several policies, one after the other.

    Returns:
        A row for each policy, or for each budget of "auto", and this rank's
        bytes by kind for each policy with an optimizer.
    """
    native.capi().tfring_offload_count_allocations()
    policies = [
        _prepared(options, who, offload) for who, offload in _offloads(options)
    ]
    for _ in range(options.rounds):
        for policy in policies:
            tfring.barrier()
            costs = costs_of(policy.step, options.steps)
            policy.turns.append(tfring.allgather_object(costs))
    rows = [
        Row.of_turns(
            f"{options.model}, batch {options.batch_size}",
            0,
            policy.who,
            policy.turns,
            added_bytes=max(tfring.allgather_object(policy.peak_bytes)),
        )
        for policy in policies
    ]
    return rows, {
        f"bytes of {kind}, {policy.who}": count
        for policy in policies
        for kind, count in policy.kinds.items()
    }


def _offloads(
    options: argparse.Namespace,
) -> Iterator[tuple[str, tfring.Offload | None]]:
    for policy in options.policies:
        base, _, offloaded = policy.partition("+")
        if base == "auto":
            for budget in [
                sizes.parse_bytes(text) for text in options.budgets
            ] or _quarters(options.model, options.batch_size):
                yield (
                    f"auto, {budget / 2**20:.0f} MiB",
                    tfring.Offload("auto", budget_bytes=budget),
                )
        elif base in ("none", "remat", *OPTIMIZERS):
            yield policy, tfring.Offload(offloaded) if offloaded else None
        else:
            yield policy, tfring.Offload(base)


def _prepared(
    options: argparse.Namespace, who: str, offload: tfring.Offload | None
) -> _Policy:
    """Returns a policy after its warm-up steps, with its peak."""
    left = _memory_info("current")
    base = who.partition("+")[0]
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    optimizer = None
    if base in OPTIMIZERS:
        optimizer = tfring.DistributedOptimizer(
            "adam", shard_states=base != "whole"
        )
    scope: Any = contextlib.nullcontext()
    if base in ("parameters", "hybrid"):
        scope = tfring.shard_parameters(
            min_elements=1024,
            group_bytes=sizes.parse_bytes(options.group),
            within=_half() if base == "hybrid" else None,
        )
    with scope:
        step, variables = _step(
            options.model,
            options.batch_size,
            offload,
            optimizer,
            remat=base == "remat",
            jit_compile=options.jit_compile,
        )
    for _ in range(_WARM_UP_STEPS):
        step()
    tf.config.experimental.reset_memory_stats(_device())
    for _ in range(options.steps):
        step()
    peak = _memory_info("peak") - left
    kinds = _bytes_by_kind(variables, optimizer) if optimizer else {}
    if kinds:
        kinds["the rest"] = peak - sum(kinds.values())
    return _Policy(who, step, peak, kinds, [])


@functools.cache
def _half() -> tfring.ProcessSet:
    """Returns the process set of this rank's half of the ranks."""
    ranks, half = list(range(tfring.size())), tfring.size() // 2
    if len(ranks) < 4 or len(ranks) % 2:
        raise SystemExit("The policy hybrid takes an even number of ranks, 4+.")
    halves = [tfring.add_process_set(r) for r in (ranks[:half], ranks[half:])]
    return halves[tfring.rank() // half]


def _bytes_by_kind(variables: Sequence[Any], optimizer: Any) -> dict[str, int]:
    """Returns the bytes of this rank's weights, states and gradients."""
    shares = [parameter_share(v) for v in variables]
    weights = [
        v if share is None else share.stored
        for v, share in zip(variables, shares, strict=True)
    ]
    layout: Layout | None = optimizer.__dict__.get("_tfring_layout")
    gradients = variables if layout is None else layout.shares
    return {
        "weights": _bytes_of(weights),
        "states": _bytes_of(optimizer.variables),
        "gradients": _bytes_of(gradients),
    }


def _bytes_of(tensors: Sequence[Any]) -> int:
    return sum(
        tf.TensorShape(t.shape).num_elements() * tf.as_dtype(t.dtype).size
        for t in tensors
    )


def _quarters(model: str, batch_size: int) -> list[int]:
    """Returns 1/4, 1/2 and 3/4 of the feature maps' bytes."""
    offload = tfring.Offload("all")
    step, _ = _step(model, batch_size, offload, None, remat=False)
    step()
    known = offload.statistics()
    whole = known.moved_bytes if known else 0  # below min_bytes
    return [max(1, whole * part // 4) for part in (1, 2, 3)]


def _memory_info(what: str) -> int:
    return int(tf.config.experimental.get_memory_info(_device())[what])


def _device() -> str:
    """Returns the device for the steps."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def _step(
    name: str,
    batch_size: int,
    offload: tfring.Offload | None,
    optimizer: Any,
    *,
    remat: bool,
    jit_compile: bool = False,
) -> tuple[Callable[[], Any], list[Any]]:
    """Returns a training step of a model, and the model's variables.

    Each call of the step trains on the same data.
    """
    shape, blocks, head = MODELS[name]()
    calls = [_remat(block) for block in blocks] if remat else blocks
    if name.startswith("gpt"):
        x = tf.random.stateless_uniform(
            [batch_size, *shape], [0, 1], 0, LETTERS, tf.int32
        )
    else:
        x = tf.random.stateless_normal([batch_size, *shape], [0, 1])

    def loss_of(value: Any) -> Any:
        for call in calls:
            value = call(value)
        return tf.reduce_mean(head(value) ** 2)

    loss_of(x[:1])  # makes the variables
    variables = [
        variable
        for layer in [*blocks, head]
        for variable in layer.trainable_weights
    ]

    @tf.function(jit_compile=jit_compile or None)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(tf.identity(x))
        gradients = tape.gradient(loss, variables)
        if offload is not None:
            tfring.offload_activations(gradients, offload)
        if optimizer is not None:
            optimizer.apply(gradients, variables)
            return loss
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(1e-3 * tf.convert_to_tensor(gradient))
        return loss

    return lambda: step().numpy(), variables


def _remat(block: Any) -> Any:
    # Keras takes positional arguments alone here.
    again = keras.remat(block)
    return lambda value: again(value)


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draws time over memory, with a point for each policy."""
    figure, axes = plots.canvas(8, 5, rows[0].case)
    for row in rows:
        point = ((row.added_bytes or 0) / 2**20, row.seconds.median * 1e3)
        axes.plot(*point, "o")
        axes.annotate(
            row.who,
            point,
            xytext=(6, 4),
            textcoords="offset points",
            color=plots.TEXT_COLOUR,
        )
    axes.set_xlabel("peak memory, MiB")
    axes.set_ylabel("a step, ms")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    figure.savefig(path)


def between_hosts(options: argparse.Namespace) -> None:
    """Runs the measurement on hosts with slow links, and prints its rows."""
    # Pass on this program's flags, except the hosts'.
    flags = [
        flag
        for flag in sys.argv[1:]
        if not flag.startswith(("--hosts", "--ranks", "--rate_mbit", "--json"))
    ]
    with program.network(options.hosts, options.rate_mbit) as network:
        found = program.rows_between_hosts(
            network, [__file__, *flags], ranks=options.ranks
        )
        sent = sent_by_interfaces(network)
    rows = [
        Row(**(row | {"seconds": Spread(**row["seconds"])})) for row in found
    ]
    print(report.table(rows))
    print(f"The interfaces have sent {sent / 1e6:.1f} MB.")
    program.write_figures(options, rows=found, sent_by_interfaces=sent)


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each")
    parser.add_argument(
        "--policies",
        type=program.words,
        default="none,all,conv",
        help="none; remat (keras.remat of each block); all, conv and auto (by "
        "tfring.Offload); whole, sharded, parameters and hybrid (Adam's states "
        "on every rank, or shared out between the ranks, or with the "
        "parameters, or these within each half of the ranks), also with "
        "offloading: sharded+all",
    )
    parser.add_argument(
        "--group", default="7m", help="group_bytes of the policy parameters"
    )
    parser.add_argument("--jit_compile", action="store_true")
    parser.add_argument(
        "--budgets",
        type=program.words,
        default="",
        help="of auto, in bytes of feature maps that stay: 300m,600m, for "
        "example; by default a quarter, a half and three quarters of all",
    )
    parser.add_argument(
        "--plot", type=Path, help="a PNG or SVG file; needs matplotlib"
    )
    parser.add_argument(
        "--hosts", type=int, default=0, help="as those of slow_links.py"
    )
    parser.add_argument("--ranks", type=int, default=1, help="of each host")
    parser.add_argument(
        "--rate_mbit", type=int, default=1000, help="of each host's link"
    )
    options = parser.parse_args()
    if options.hosts:
        between_hosts(options)
        return
    tfring.init()
    rows, summary = measure(options)
    program.show_rows(options, rows, **summary)
    if options.plot and tfring.rank() == 0:
        plot(options.plot, rows)


if __name__ == "__main__":
    main()

"""`tfring-bench predict`: a step's communication on a planned cluster.

Note [What is predicted]: the cost model by which tfring chooses algorithms
(docs/scaling.md) gives the time of each bucket. Backpropagation is taken to
produce gradients at a steady rate, by bytes. They are sent in buckets as in
tfring/_gradients/buckets.py, and reduced one after the other; buckets that
became ready meanwhile are fused. Communication that remains when
backpropagation ends is exposed.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import math
from collections.abc import Callable, Sequence

from tfring._core import native
from tfring.bench import sizes
from tfring.bench.statistics import format_seconds

# The engine's default, TFRING_FUSION_THRESHOLD.
_FUSED_BYTES = 64 << 20
# The bucket sizes of tfring/_gradients/buckets.py.
_FIRST_BYTES, _PART_BYTES, _PARTS = 1 << 20, 4 << 20, 8


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Ranks and the links between them; see `add_arguments`."""

    ranks: int
    per_node: int
    gbits: float
    latency_us: float
    link_per_rank: bool
    node_gbytes: float
    node_latency_us: float
    reduce_gbytes: float

    @property
    def nodes(self) -> int:
        return self.ranks // self.per_node

    def costs(self) -> list[float]:
        """Returns the fields of `Costs` in C++: seconds, seconds per byte."""
        within = self.node_latency_us * 1e-6
        across = self.latency_us * 1e-6
        by_byte = 8e-9 / self.gbits
        # In a ring over all ranks one of `per_node` links leaves the node.
        mean = ((self.per_node - 1) * within + across) / self.per_node
        shared = 1 if self.link_per_rank else self.per_node
        return [
            *(within, 1e-9 / self.node_gbytes),
            *(mean, by_byte),
            *(across, shared * by_byte),
            1e-9 / self.reduce_gbytes,
        ]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The reductions of a step.

    Attributes:
        seconds: The time of all reductions, one after the other.
        plans: The names of the algorithms, without repetition.
        reductions: The number of reductions.
        exposed_seconds: The time of communication that remains when
            backpropagation ends.
    """

    seconds: float
    plans: list[str]
    reductions: int
    exposed_seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command."""
    numbers: list[tuple[str, Callable[[str], float], float | None, str]] = [
        ("ranks", _count, None, "all ranks"),
        ("per_node", _count, None, "the ranks of a node"),
        ("gbits", _positive, None, "the rate of a node's link, in Gbit/s"),
        ("latency_us", _positive, 20, "of a message between nodes, in us"),
        ("node_gbytes", _positive, 8, "the rate within a node, in GB/s"),
        ("node_latency_us", _positive, 2, "of a message within a node, in us"),
        ("reduce_gbytes", _positive, 10, "the rate of additions, in GB/s"),
        ("backprop_ms", _positive, None, "how long backpropagation takes"),
    ]
    for name, kind, default, text in numbers:
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=default,
            required=default is None and name != "backprop_ms",
            help=text if default is None else f"{text}; default: %(default)s",
        )
    parser.add_argument(
        "--link_per_rank",
        action="store_true",
        help="each rank is a GPU, and has such a link of its own",
    )
    gradients = parser.add_mutually_exclusive_group()
    gradients.add_argument(
        "--preset",
        choices=sizes.PRESETS,
        default="resnet50",
        help="the model; default: %(default)s",
    )
    gradients.add_argument(
        "--bytes",
        type=sizes.parse_bytes,
        help="the size of all gradients in place of a model's, such as 400m",
    )


def run(options: argparse.Namespace) -> str:
    """Returns what the command prints; the ranks must fill the nodes."""
    cluster = Cluster(
        **{
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(Cluster)
        }
    )
    if options.bytes:
        full, rest = divmod(options.bytes, 1 << 20)
        tensors = [1 << 20] * full + [rest] * (rest > 0)
    else:
        shapes = sizes.PRESETS[options.preset]()
        tensors = [4 * math.prod(shape) for shape in shapes]
    seconds = (options.backprop_ms or 0) * 1e-3
    found = predict(
        tensors, seconds, lambda size: _seconds_and_plan(cluster, size)
    )
    lines = [
        f"{cluster.ranks} ranks on {cluster.nodes} nodes, "
        f"{sum(tensors) / 1e6:.1f} MB of gradients in {found.reductions} "
        f"reduction{'s' if found.reductions > 1 else ''}",
        f"reduced in {format_seconds(found.seconds)} by "
        f"{', '.join(found.plans)}",
    ]
    if seconds:
        hidden = max(0, 1 - found.exposed_seconds / found.seconds)
        lines.append(
            f"beside {format_seconds(seconds)} of backpropagation: "
            f"{hidden:.0%} hidden, {format_seconds(found.exposed_seconds)} "
            "longer"
        )
    lines.append(
        "By the cost model, without congestion, and with ranks that are ready "
        "at the same time: docs/scaling.md."
    )
    return "\n".join(lines)


def predict(
    tensors: Sequence[int],
    backprop_seconds: float,
    reduction: Callable[[int], tuple[float, str]],
) -> Prediction:
    """Predicts the reductions of a step; see Note [What is predicted].

    Args:
        tensors: The bytes of each gradient, in forward order.
        backprop_seconds: How long backpropagation takes.
        reduction: Returns the seconds of an allreduce of some bytes, and the
            name of its algorithm.
    """
    waiting = collections.deque(_buckets(tensors))
    total, taken, reductions, end, busy = sum(tensors), 0, 0, 0.0, 0.0
    plans: dict[str, None] = {}
    while waiting:
        fused = waiting.popleft()
        begin = max(end, backprop_seconds * (taken + fused) / total)
        ready = total * begin / backprop_seconds if backprop_seconds else total
        while (
            waiting
            and taken + fused + waiting[0] <= ready
            and fused + waiting[0] <= _FUSED_BYTES
        ):
            fused += waiting.popleft()
        taken += fused
        reductions += 1
        seconds, plan = reduction(fused)
        end = begin + seconds
        busy += seconds
        plans[plan] = None
    return Prediction(busy, list(plans), reductions, end - backprop_seconds)


def _buckets(tensors: Sequence[int]) -> list[int]:
    part = min(_FUSED_BYTES, max(_PART_BYTES, sum(tensors) // _PARTS))
    buckets = [0]
    for size in reversed(tensors):
        limit = _FIRST_BYTES if len(buckets) == 1 else part
        if buckets[-1] and buckets[-1] + size > limit:
            buckets.append(0)
        buckets[-1] += size
    return buckets


def _seconds_and_plan(cluster: Cluster, count_bytes: int) -> tuple[float, str]:
    costs = cluster.costs()
    text = native.capi_without_ops().tfring_predict_allreduce(
        cluster.nodes,
        cluster.per_node,
        (ctypes.c_double * len(costs))(*costs),
        cluster.link_per_rank,
        count_bytes,
    )
    seconds, plan = text.decode().split("\t")
    return float(seconds), plan


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number.")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1.")
    return number

"""LocalSGD, DiLoCo and Gossip: how ranks train in rounds of several steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

import keras
import numpy as np

from tfring._core.process_sets import ProcessSet
from tfring._ops.arguments import check_whole_number


class Rounds:
    """Base class of the arguments for `sync` of an optimizer.

    Attributes:
        every: The number of updates in a round.
        start: The number of updates before the first round.
        within: The ranks that average gradients in every step of a round.
    """

    every: int
    start: int
    within: ProcessSet | Literal["host"] | None

    def outer_optimizer(self) -> keras.optimizers.Optimizer:
        """Returns a new optimizer for the weights at the end of a round."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_whole_number(name, "every", self.every, 1)
        check_whole_number(name, "start", self.start, 0)
        if not (
            self.within is None
            or self.within == "host"
            or isinstance(self.within, ProcessSet)
        ):
            raise TypeError(
                f"{name}: within must be a tfring.ProcessSet, 'host' or None, "
                f"got {self.within!r}."
            )


@dataclasses.dataclass(frozen=True, eq=False)
class LocalSGD(Rounds):
    """Rounds of local steps, after which the weights are averaged.

    Pass it as `sync` to `tfring.DistributedOptimizer`. Each rank trains alone,
    on its own data and with its own optimizer state, and sends nothing. After
    `every` updates the ranks *meet*: all of them get the mean of their weights.
    So they send `every` times fewer bytes.

    Use the learning rate for one rank, because a step's batch is that of one
    rank.

    Args:
        every: The number of updates in a round. With
            `backward_passes_per_step` an update takes several batches.
        start: The number of updates before the first round. They average
            gradients in every step, as without `sync`.
        within: The ranks that average their gradients in every step of a round:
            a process set that this rank is in, or "host" for the ranks of each
            machine. Then only the ranks of different sets train apart.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is too small.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(0.1), sync=tfring.LocalSGD(every=10)
    )
    ```
    """

    every: int
    start: int = 0
    within: ProcessSet | Literal["host"] | None = None

    def outer_optimizer(self) -> keras.optimizers.Optimizer:
        """Returns the optimizer whose update is the mean of the weights."""
        return keras.optimizers.SGD(1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class DiLoCo(Rounds):
    """Rounds of local steps, after which an outer optimizer takes a step.

    Pass it as `sync` to `tfring.DistributedOptimizer`. It works like
    `LocalSGD`, except that the weights do not become the mean of the ranks'
    weights: an *outer* optimizer updates the weights of the round's beginning,
    with the mean change of the round as its gradient. Its momentum makes long
    rounds possible. See Douillard et al., DiLoCo, arXiv:2311.08105.

    Args:
        every: See `LocalSGD`.
        start: See `LocalSGD`. A tenth of all updates is a good choice: from
            random weights, the outer momentum overshoots.
        outer: Any Keras optimizer; by default
            `keras.optimizers.SGD(0.9, momentum=0.7, nesterov=True)`. With some
            tens of rounds the paper's momentum, 0.9, is too large.
        within: See `LocalSGD`.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is too small.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.AdamW(4e-4),
        sync=tfring.DiLoCo(every=50, start=1000),
        compression=tfring.Compression.bf16,
    )
    ```
    """

    every: int
    start: int = 0
    outer: keras.optimizers.Optimizer | None = None
    within: ProcessSet | Literal["host"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.outer, keras.optimizers.Optimizer | None):
            raise TypeError(
                "DiLoCo: outer must be an optimizer of keras.optimizers, got "
                f"{self.outer!r}."
            )

    def outer_optimizer(self) -> keras.optimizers.Optimizer:
        """Returns a new optimizer with the settings of `outer`."""
        if self.outer is None:
            return keras.optimizers.SGD(0.9, momentum=0.7, nesterov=True)
        # Each optimizer gets a copy, because several may share one description.
        return type(self.outer).from_config(self.outer.get_config())


@dataclasses.dataclass(frozen=True, eq=False)
class Gossip(Rounds):
    """Rounds after which a rank averages its weights with a few neighbours.

    Pass it as `sync` to `tfring.DistributedOptimizer`. In a round a rank sends
    the model once to each neighbour, so a slow link delays only its two ends.
    The ranks' weights differ, but stay near their mean, which an exchange does
    not change; `fit` validates and ends with the mean. Use it with very many
    ranks; `DiLoCo` sends less. It does not run under XLA: Keras's
    `jit_compile="auto"` is False with it.

    Args:
        topology: "exponential": in round `k` a rank sends to the rank that is
            `2**k` further on, with `k` modulo `log2(size)`; for 2, 4, 8, ...
            ranks the mean is exact after each such series. "ring": a rank sends
            to both neighbours. A function takes the number of ranks and the
            number of the round, and returns how many ranks further on each
            receiver is. Must agree across ranks.
        every: See `LocalSGD`.
        start: See `LocalSGD`.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is too small, or there is no such topology.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(0.1), sync=tfring.Gossip("ring", every=4)
    )
    ```
    """

    topology: str | Callable[[int, int], Iterable[int]] = "exponential"
    every: int = 1
    start: int = 0
    within: None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.topology) and self.topology not in _TOPOLOGIES:
            raise ValueError(
                "Gossip: topology must be 'exponential', 'ring' or a function "
                f"of the size and the round, got {self.topology!r}."
            )

    def hops(self, size: int, number: int) -> list[int]:
        """Returns how many ranks further on the receivers of a round are.

        Args:
            size: The number of ranks.
            number: The number of the round, from 0.

        Raises:
            ValueError: The topology gives no whole numbers.
        """
        topology = self.topology
        if isinstance(topology, str):
            topology = _TOPOLOGIES[topology]
        hops = list(topology(size, number))
        if not all(isinstance(hop, int | np.integer) for hop in hops):
            raise ValueError(
                f"Gossip: the topology gave {hops!r} for {size} ranks and "
                f"round {number}. It must give whole numbers: how many ranks "
                "further on each receiver is."
            )
        return sorted({int(hop) % size for hop in hops} - {0})


def _exponential(size: int, number: int) -> list[int]:
    return [2 ** (number % max(1, (size - 1).bit_length()))]


def _ring(size: int, number: int) -> list[int]:
    return [1, size - 1]


_TOPOLOGIES = {"exponential": _exponential, "ring": _ring}

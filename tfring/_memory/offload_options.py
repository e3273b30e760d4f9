"""Offload: which feature maps leave the device, and where they go."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfring._core import native
from tfring._ops.arguments import check_whole_number

_POLICIES = ("all", "conv", "auto")

_plans = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """A tensor of the forward pass that backpropagation needs.

    Attributes:
        name: The tensor's name in the traced graph.
        op_type: The type of the operation that made it, such as "Relu".
        shape: The shape, as far as it is known when the step is traced.
        dtype: Its dtype.
        forward_uses: The types of the operations of the forward pass that use
            it, directly or through casts and views such as "Reshape".
        backward_uses: The types of backpropagation's operations that use it.
    """

    name: str
    op_type: str
    shape: tf.TensorShape
    dtype: tf.DType
    forward_uses: tuple[str, ...]
    backward_uses: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class OffloadStatistics:
    """Figures of the last step: how much it has moved, and the memory it took.

    Attributes:
        moved: How many feature maps were moved.
        moved_bytes: The bytes of the moved feature maps.
        kept_bytes: The bytes of feature maps that stayed within the budget.
        peak_bytes: The most bytes that TensorFlow's allocator of the device had
            allocated at once in this process, by its own count; -1 if it does
            not count. `tf.config.experimental.reset_memory_stats` resets it. On
            a CPU with oneDNN it leaves out tensors below 256 KiB; on other CPUs
            there is no count.
        tier_bytes: The bytes of feature maps in the host's memory now, pinned
            or not, of all steps of this process.
        tier_peak_bytes: The most that `tier_bytes` has been. Up to that much
            memory stays allocated for later steps.
    """

    moved: int
    moved_bytes: int
    kept_bytes: int
    peak_bytes: int
    tier_bytes: int
    tier_peak_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Offload:
    """Moves feature maps away between forward pass and backpropagation.

    Memory limits the batch and the model, and most of it holds the results of
    layers that wait for backpropagation. With this option they are copied to
    memory of the host outside of TensorFlow, which is pinned for a GPU; their
    memory is released, and they are copied back before they are needed. The
    copies overlap with the computation. With `"all"` and `"conv"` the weights
    are the same to the bit in all models of the tests; where a function moves
    only some, TensorFlow's optimizations may round a sum in another way.

    Pass it as `offload=` to `tfring.DistributedOptimizer` or
    `tfring.DistributedGradientTape`, or use `tfring.offload_activations`. It
    works on one rank as on many, and adds no collective. It need not agree
    across ranks.

    Args:
        policy: Which feature maps are moved. `"all"`: those that
            backpropagation needs. `"conv"`: only the inputs of convolutions and
            matrix products. `"auto"`: as few as `budget_bytes` allows. A
            function takes a `FeatureMap` and returns whether it is moved.
        budget_bytes: For `"auto"`: how many bytes of feature maps may stay. The
            first step moves all of them. Every later step has a plan by the
            sizes of the step before: the feature maps that backpropagation
            needs first stay. The budget does not count feature maps that are
            being copied, see `ahead`, tensors below `min_bytes`, weights and
            the batch. Each traced call has a budget of its own.
        min_bytes: Smaller feature maps stay.
        ahead: How many feature maps may be being copied out at a time, and how
            many may be copied back before they are used. A larger number hides
            copies better, and takes more memory.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: An argument has an invalid value; the message says which.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.SGD(0.01), offload=tfring.Offload("conv")
    )
    model.compile(optimizer, "mse")
    ```

    Reference:
        Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable,
        Memory-Efficient Neural Network Design", MICRO 2016.
    """

    policy: str | Callable[[FeatureMap], bool] = "all"
    budget_bytes: int | None = None
    min_bytes: int = 1 << 20
    ahead: int = 2
    # The plans of the steps that have been traced with these options.
    _traced: list[int] = dataclasses.field(
        default_factory=list, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if not callable(self.policy) and self.policy not in _POLICIES:
            raise ValueError(
                'Offload: policy must be "all", "conv", "auto" or a function '
                f"of a FeatureMap, got {self.policy!r}."
            )
        for name, least in (("min_bytes", 0), ("ahead", 1)):
            check_whole_number("Offload", name, getattr(self, name), least)
        if (self.policy == "auto") != (self.budget_bytes is not None):
            raise ValueError(
                'Offload: policy="auto" and budget_bytes go together, got '
                f"policy={self.policy!r} and budget_bytes="
                f"{self.budget_bytes!r}."
            )
        if self.budget_bytes is not None:
            check_whole_number("Offload", "budget_bytes", self.budget_bytes, 1)

    def statistics(self) -> OffloadStatistics | None:
        """Returns the statistics of the last step with these options.

        Returns:
            None before the first step.
        """
        fields = (ctypes.c_int64 * len(dataclasses.fields(OffloadStatistics)))()
        capi = native.capi()
        for plan in reversed(self._traced):
            if capi.tfring_offload_statistics(plan, fields) == 0:
                return OffloadStatistics(*fields)
        return None

    def _new_plan(self) -> int:
        """Returns the number of a new plan, for one more traced step."""
        plan = next(_plans)
        self._traced.append(plan)
        return plan


def checked_offload(function: str, offload: Any) -> Offload | None:
    """Returns the argument `offload` of a public function.

    Raises:
        TypeError: It is neither None nor an `Offload`.
    """
    if offload is not None and not isinstance(offload, Offload):
        raise TypeError(
            f"{function}: offload must be a tfring.Offload, or None, got "
            f"{offload!r} of type {type(offload).__name__}."
        )
    return offload

"""A callback that starts all ranks from the same weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from tfring._gradients.local_variables import LocalVariables
from tfring._ops.devices import checked_device
from tfring._state.model_state import broadcast_model, has_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Starts training from one rank's state: weights, optimizer, seeds.

    Without it ranks would average gradients of different models if they were
    initialized differently, or if one has loaded a checkpoint. It acts once in
    each `fit`, before the first batch; a model that has no variables until it
    has seen a batch is broadcast after that. Metrics remain each rank's own;
    gradients that were accumulated in an earlier `fit` become their mean over
    the ranks. Collective: pass it on every rank.

    Each rank draws noise of its own, for dropout and augmentation in the model:
    the seeds of layers become `root_rank`'s, folded with the rank, so that a
    run can be repeated, and resumed from that rank's checkpoint. Horovod's
    callback gives all ranks the same seeds.

    Args:
        root_rank: All ranks take this rank's state. Must agree across ranks.
        device: The device for the broadcast, such as "/cpu:0". By default
            TensorFlow chooses it.
        local_variables: The model's variables that remain each rank's own, with
            the optimizer's states for them. Those of a
            `tfring.PartialDistributedOptimizer`'s local layers always do.
        same_seeds: If true, all ranks have the seeds of `root_rank`, and draw
            the same noise.

    Raises:
        NotImplementedError: tfring has no kernels for `device`.
        TypeError: `device` is not a string.
        ValueError: There is no such device.

    Example:

    ```python
    model.fit(x, y, callbacks=[
        tfring.callbacks.BroadcastGlobalVariablesCallback(0)])
    ```
    """

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Iterable[Any] = (),
        same_seeds: bool = False,
    ) -> None:
        super().__init__()
        self.device = checked_device(
            "BroadcastGlobalVariablesCallback", "device", device
        )
        self.root_rank = root_rank
        self.same_seeds = same_seeds
        self._local_variables = LocalVariables(local_variables)
        self._done = False

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable to each rank, as one of `local_variables`."""
        self._local_variables.add(var)

    def on_train_begin(self, logs: Any = None) -> None:
        self._done = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # In on_train_begin an optimizer has no variables yet, and a later
        # callback may still load a checkpoint.
        if not self._done and has_variables(self.model):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        broadcast_model(
            self.model,
            root_rank=self.root_rank,
            local_variables=[self._local_variables],
            device=self.device,
            same_seeds=self.same_seeds,
        )

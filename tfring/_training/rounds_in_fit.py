"""Shows the common weights to callbacks in `fit`, and ends rounds."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras

from tfring._training.kinds import rounds_among
from tfring._training.round_state import GossipRound
from tfring._training.rounds import optimizers_in_rounds, shared_weights


class RoundsInFit(keras.callbacks.Callback):
    """Shows the common weights to validation and savers. The first callback.

    Args:
        saves_in_batches: True if a callback saves between epochs' ends.
    """

    def __init__(self, *, saves_in_batches: bool) -> None:
        super().__init__()
        self.saves_in_batches = saves_in_batches
        self._shown = ExitStack()
        self.last = EndOfCallbacks(self)

    def on_test_begin(self, logs: Any = None) -> None:
        self._show()

    def on_test_end(self, logs: Any = None) -> None:
        self.hide()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.saves_in_batches:
            self._show()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for each in optimizers_in_rounds(self.model):
            if isinstance(each._tfring_round, GossipRound):
                distance = each.consensus_distance()
                (logs or {})["consensus_distance"] = distance
        self._show()

    def on_train_end(self, logs: Any = None) -> None:
        for each in rounds_among(self.model.variables):
            each.end_fit()

    def begin(self) -> None:
        """Called after all callbacks that may load weights."""
        for each in rounds_among(self.model.variables):
            each.begin_fit()

    def _show(self) -> None:
        self._shown.enter_context(shared_weights(self.model))

    def hide(self) -> None:
        """Gives the model this rank's weights again, if it shows others."""
        self._shown.close()


class EndOfCallbacks(keras.callbacks.Callback):
    """Called after all callbacks that load, or see the common weights."""

    def __init__(self, rounds: RoundsInFit) -> None:
        super().__init__()
        self._rounds = rounds

    def on_train_begin(self, logs: Any = None) -> None:
        self._rounds.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._rounds.saves_in_batches:
            self._rounds.hide()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._rounds.hide()

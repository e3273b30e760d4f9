"""Shows the common weights to callbacks in `fit`, and ends rounds."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras

from tfring._core.process_sets import is_alone
from tfring._ops.gather_json import gather_by_rank
from tfring._optim.rounds import (
    average_untrained,
    optimizers_in_rounds,
    shared_weights,
)
from tfring._state.gossip_round import GossipRound
from tfring._state.kinds import rounds_among


class RoundsInFit(keras.callbacks.Callback):
    """The first callback: shows the common weights to validation and savers.

    Args:
        saves_in_batches: True if a callback saves within an epoch.
    """

    def __init__(self, *, saves_in_batches: bool) -> None:
        super().__init__()
        self.saves_in_batches = saves_in_batches
        self._shown = ExitStack()
        self.last = EndOfCallbacks(self)

    def on_test_begin(self, logs: Any = None) -> None:
        self._check_together("validates")
        self._show()

    def on_test_end(self, logs: Any = None) -> None:
        self.hide()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.saves_in_batches:
            self._show()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._check_together("ends the epoch")
        average_untrained(self.model)
        for each in optimizers_in_rounds(self.model):
            if isinstance(each._tfring_round, GossipRound):
                distance = each.consensus_distance()
                (logs or {})["consensus_distance"] = distance
        self._show()

    def on_train_end(self, logs: Any = None) -> None:
        for each in rounds_among(self.model.variables):
            each.end_fit()
        average_untrained(self.model)

    def _check_together(self, what: str) -> None:
        """Refuses validation on some ranks alone if it needs all of them.

        Raises:
            RuntimeError: Some ranks validate while others end the epoch. It is
                raised on every rank.
        """
        for each in rounds_among(self.model.variables):
            process_set = each.process_set
            if (
                not isinstance(each, GossipRound)
                or not process_set.included()
                or is_alone(process_set)
            ):
                continue
            of_ranks = gather_by_rank(
                what, name="rounds/together", process_set=process_set
            )
            if len(set(of_ranks.values())) > 1:
                found = "; ".join(
                    f"rank {r} {do}" for r, do in of_ranks.items()
                )
                raise RuntimeError(
                    f"fit: {found}. With sync=Gossip, validation is of the "
                    "mean of the ranks' weights, for which all ranks send "
                    "theirs. Give every rank validation_data, and the same "
                    "validation_freq."
                )

    def _show(self) -> None:
        self._shown.enter_context(shared_weights(self.model))

    def hide(self) -> None:
        """Gives the model this rank's own weights again."""
        self._shown.close()


class EndOfCallbacks(keras.callbacks.Callback):
    """The last callback: all others have loaded or seen the common weights."""

    def __init__(self, rounds: RoundsInFit) -> None:
        super().__init__()
        self._rounds = rounds

    def on_train_begin(self, logs: Any = None) -> None:
        for each in rounds_among(self._rounds.model.variables):
            each.begin_fit()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._rounds.saves_in_batches:
            self._rounds.hide()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._rounds.hide()

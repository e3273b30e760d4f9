"""The sharded variables of an elastic state, and how other ranks share them."""

from __future__ import annotations

from typing import Any

from tfring._core import runtime
from tfring._memory.parameters import parameter_share, parameters_of
from tfring._memory.sharding_ranks import ranks_of_hosts
from tfring._ops.gather_json import gather_json
from tfring._state.model_state import without_metrics
from tfring._state.shards import Shard, shard_of
from tfring._state.whole_states import sharded_optimizers, states_of
from tfring.elastic.share_copies import Copies, FoundCopies
from tfring.elastic.state import LostStateError


class ShardedVariables:
    """The variables of a model and its optimizer, some of which are sharded.

    Args:
        model: The model.
        optimizer: Its optimizer, which has been built.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        # The number of the job for which ranks were chosen.
        self._chosen_in: int | None = None

    @property
    def exist(self) -> bool:
        """Whether parameters or an optimizer's states are sharded."""
        return bool(sharded_optimizers(self._optimizer) or self.parameters())

    def all_variables(self) -> list[Any]:
        """Returns all variables of a commit: the model's come first."""
        return [*without_metrics(self._model), *states_of(self._optimizer)]

    def parameters(self) -> list[Any]:
        """Returns the variables of `tfring.shard_parameters`."""
        variables = without_metrics(self._model)
        return [v for v in variables if parameter_share(v) is not None]

    def shards(self) -> list[Shard]:
        """Returns all shards: those of the parameters come first."""
        return [s for v in self.all_variables() if (s := shard_of(v))]

    def assign(self, copies: Copies) -> None:
        """Assigns this rank's own copies to its shards.

        A shard of other ranks stays as it is.
        """
        own = next(iter(copies.values()))
        for shard, copy in zip(self.shards(), own, strict=True):
            if copy is not None and copy.is_of(shard):
                shard.variable.assign(copy.values)

    def are_for_these_ranks(self, copies: Copies) -> bool:
        """Tells whether this rank has its shards, and its copies of them."""
        [rank, own], *_ = copies.items()
        pairs = zip(own, self.shards(), strict=True)
        return (
            rank == runtime.rank()
            and all(copy and copy.is_of(shard) for copy, shard in pairs)
            and all(each.is_for_these_ranks() for each in self.parameters())
            and not any(
                each._is_for_other_ranks()
                for each in sharded_optimizers(self._optimizer)
            )
        )

    def choose_ranks(self) -> bool:
        """Applies `within="host"` to the ranks that the job has now.

        Collective, unless it has already been done in this job.

        Returns:
            Whether other ranks share the parameters out from now on.
        """
        shares = parameters_of(self.parameters())
        groups = {
            id(share.group): share.group
            for share in shares
            if share.group.within_host
        }
        if not groups or self._chosen_in == runtime.job_number():
            return False
        ranks = ranks_of_hosts()
        before = {group.ranks.process_set for group in groups.values()}
        for group in groups.values():
            group.ranks = ranks
        self._chosen_in = runtime.job_number()
        return before != {ranks.process_set}

    def put_together(self, copies: Copies) -> None:
        """Gives these ranks their shards of a commit. Collective.

        Args:
            copies: The copies of the commit that this rank has.

        Raises:
            LostStateError: Some shards are lost. It is raised on every rank.
        """
        shards, parameters = self.shards(), self.parameters()
        found = FoundCopies(copies, shards)
        for number, parameter in enumerate(parameters):
            parameter.cut_for_ranks(found.whole(number, shards[number]))
        self._cut_optimizers()
        count = len(parameters)
        for number, shard in enumerate(self.shards()[count:], start=count):
            shard.take(found.whole(number, shard))

    def begin_again(self) -> None:
        """Cuts initial states for changed ranks, before any commit. Collective.

        Raises:
            LostStateError: A shard of a parameter or of a trained optimizer is
                lost. It is raised on every rank.
        """
        lost = [f"the parameter '{each.path}'" for each in self.parameters()]
        lost += [
            f"the states of the optimizer '{each.name}', which had made "
            f"{int(each._iterations)} steps"
            for each in sharded_optimizers(self._optimizer)
            if int(each._iterations) > 0
        ]
        of_ranks = gather_json(lost[:1], name="elastic/lost")
        for [what] in filter(None, of_ranks):
            raise LostStateError(
                "A rank was lost before the first commit, and with it its "
                f"shard of {what}. Start the job again."
            )
        self._cut_optimizers()

    def _cut_optimizers(self) -> None:
        for each in sharded_optimizers(self._optimizer):
            if each._is_for_other_ranks():
                each._cut_anew(None)

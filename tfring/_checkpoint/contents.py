"""The contents of a checkpoint, and which rank writes what.

| rule  | of                          | another number of ranks restores|
|-------|-----------------------------|---------------------------------|
| ALIKE | weights, optimizer states   | the value, which one rank has   |
|       |                             | written                         |
| SHARD | states with `shard_states`, | the whole value, sharded again  |
|       | tables of ShardedEmbedding, |                                 |
|       | parameters                  |                                 |
| MEAN  | accumulated gradients,      | the mean, which keeps their sum |
|       | errors of PowerSGD          | over the ranks                  |
| SEED  | seeds of layers             | rank 0's, folded with the rank  |
| FIRST | moving statistics, and with | rank 0's                        |
|       | `sync` optimizer states     |                                 |
| LEFT  | metrics, TensorFlow's       | nothing                         |
|       | random generators           |                                 |
| OWN   | local variables             | nothing: it is refused          |

On the same number of ranks, each rank restores what it has written itself.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring._core.process_sets import global_process_set
from tfring._gradients import powersgd_of_tapes
from tfring._gradients.local_variables import inner_variable
from tfring._gradients.powersgd import ERROR, RIGHT
from tfring._gradients.rounds import Gossip
from tfring._state.kinds import Kind, kind_of, rounds_among
from tfring._state.model_state import local_variables_of, without_metrics
from tfring._state.optimizers import (
    distributed_optimizers,
    optimizers_of,
    with_inner,
)
from tfring._state.shards import Shard, shard_of
from tfring._state.splits import Flat
from tfring._state.weights import variable_name
from tfring._state.whole_states import states_of


class Rule(enum.Enum):
    """The rules of the table above. Manifests contain the values."""

    ALIKE = "alike"
    SHARD = "shard"
    MEAN = "mean"
    SEED = "seed"
    FIRST = "first"
    LEFT = "left"
    OWN = "own"


# The prefix of the keys of the states of tapes.
_OF_TAPES = "low-rank-of-tapes-"
_RULE_OF_KIND = {
    Kind.ALIKE: Rule.ALIKE,
    Kind.FOLDED: Rule.SEED,
    Kind.SHARD: Rule.SHARD,
    Kind.ACCUMULATED: Rule.MEAN,
    Kind.OWN: Rule.OWN,
}


@dataclasses.dataclass(frozen=True)
class Item:
    """A variable of a training, or a value without one.

    Attributes:
        key: Its name in the part. It does not depend on names that Keras
            numbers by process.
        rule: Which ranks write it and which restore it.
        name: The variable's name, for users and messages.
        value: Returns its value.
        assign: Assigns a value; for a shard, the elements of this rank.
        shard: The item's shard, or None if it is not sharded.
    """

    key: str
    rule: Rule
    name: str
    value: Callable[[], tf.Tensor]
    assign: Callable[[np.ndarray[Any, Any]], Any]
    shard: Shard | None = None

    def describe(self, value: Any) -> dict[str, Any]:
        """Returns the manifest's entry for the item and this rank's value."""
        described = {
            "key": self.key,
            "rule": self.rule.value,
            "name": self.name,
            "dtype": tf.as_dtype(value.dtype).name,
            "shape": [int(each) for each in value.shape],
        }
        if self.shard is not None:
            split = self.shard.split
            described["whole shape"] = list(split.shape)
            described["size"] = split.size
            described["number"] = self.shard.rank
            if isinstance(split, Flat):
                described["ranges"] = [list(each) for each in split.ranges]
        return described


def items_of_model(
    model: Any,
    optimizers: Sequence[Any],
    saved: Mapping[str, Any] | None = None,
) -> list[Item]:
    """Returns the items of the state of a Keras model's training.

    Args:
        model: A Keras model that has been built.
        optimizers: Its optimizers, or others that train it; built.
        saved: `Saved.items()` of a checkpoint that is to be restored. Variables
            that only the first step would make are made now if the checkpoint
            has them.

    Raises:
        NotImplementedError: A part of the state cannot be saved.
    """
    for optimizer in optimizers:
        _check_optimizer(optimizer)
    local = [local for each in optimizers for local in local_variables_of(each)]
    # Moving statistics differ between ranks, and so do momenta in rounds.
    apart = {
        id(variable)
        for layer in model._flatten_layers()
        for variable in layer._non_trainable_variables
    }
    for optimizer in optimizers:
        for each in with_inner(optimizer):
            if getattr(each, "_tfring_round", None) is not None:
                apart |= set(map(id, states_of(each)))

    def rule_of(variable: Any) -> Rule:
        rule = _RULE_OF_KIND[kind_of(variable, local)]
        is_apart = rule is Rule.ALIKE and id(variable) in apart
        return Rule.FIRST if is_apart else rule

    weights = without_metrics(model)
    groups: dict[str, Iterable[Any]] = {"model": weights}
    for number, optimizer in enumerate(optimizers):
        groups[f"optimizer-{number}"] = states_of(optimizer)
    items = _items(groups, rule_of)
    items += _low_rank_items(model, optimizers, saved)
    rounds = [state for each in rounds_among(weights) for state in each.state]
    items += _items({"rounds": rounds}, lambda _: Rule.ALIKE)
    items += _items({"metrics": model.metrics_variables}, lambda _: Rule.LEFT)
    return [*items, *_random_items(model)]


def _low_rank_items(
    model: Any, optimizers: Sequence[Any], saved: Mapping[str, Any] | None
) -> list[Item]:
    """Returns the state of `tfring.PowerSGD`, in optimizers and in tapes."""
    found = []
    distributed = [
        e for each in optimizers for e in distributed_optimizers(each)
    ]
    for number, optimizer in enumerate(distributed):
        low_rank = optimizer._tfring_options.low_rank
        if low_rank is not None:
            trained = optimizer._trainable_variables
            found.append((f"low-rank-{number}/", low_rank, trained))
    ranks = None if saved is None else _ranks_of_tapes(saved)
    of_tapes = powersgd_of_tapes.low_ranks(ranks)
    for number, low_rank in enumerate(of_tapes):
        trained = model.trainable_variables
        found.append((f"{_OF_TAPES}{number}/", low_rank, trained))
    items = []
    for prefix, low_rank, trained in found:
        keys = [key for key in saved or () if key.startswith(prefix)]
        names = [key.removeprefix(prefix) for key in keys]
        low_rank.make(trained, names)
        for name, variable in low_rank.variables(trained).items():
            is_error = name.endswith(ERROR)
            items.append(
                Item(
                    prefix + name,
                    Rule.MEAN if is_error else Rule.ALIKE,
                    f"{name} of tfring.PowerSGD",
                    _reader(variable),
                    variable.assign,
                )
            )
    return items


def _ranks_of_tapes(saved: Mapping[str, Any]) -> list[int]:
    """Returns the ranks of the factors of tapes in a checkpoint."""
    ranks: dict[int, int] = {}
    for key, described in saved.items():
        if key.startswith(_OF_TAPES) and key.endswith(f"/{RIGHT}"):
            number = int(key[len(_OF_TAPES) :].partition("/")[0])
            ranks[number] = described["shape"][0]
    return [ranks[number] for number in sorted(ranks)]


def items_of_variables(variables: Iterable[Any]) -> list[Item]:
    """Returns a user's further variables, such as counters."""
    return _items(
        {"variables": variables},
        lambda variable: _RULE_OF_KIND[kind_of(variable)],
    )


def _random_items(model: Any) -> list[Item]:
    """Returns TensorFlow's global random generator, and those of layers."""
    states = {
        "random-generator": [tf.random.get_global_generator().state],
        "generators": [
            value.state
            for layer in model._flatten_layers()
            for value in vars(layer).values()
            if isinstance(value, tf.random.Generator)
        ],
    }
    return _items(states, lambda _: Rule.LEFT)


def _items(
    groups: Mapping[str, Iterable[Any]], rule_of: Callable[[Any], Rule]
) -> list[Item]:
    """Returns one item for each variable, even if it is in two groups."""
    seen: set[int] = set()
    items = []
    for group, variables in groups.items():
        for number, variable in enumerate(variables):
            if id(variable) in seen:
                continue
            seen.add(id(variable))
            name = variable_name(variable)
            if variable.dtype == tf.string:
                raise NotImplementedError(
                    f"Checkpoint: the variable '{name}' holds strings, which "
                    "are not saved. Keep them elsewhere."
                )
            rule = rule_of(variable)
            shard = shard_of(variable) if rule is Rule.SHARD else None
            if rule is Rule.SHARD:
                _check_shard(name, shard)
            # A sharded parameter itself would take the whole value.
            own = variable if shard is None else shard.variable
            items.append(
                Item(
                    f"{group}/{number}",
                    rule,
                    name,
                    _reader(variable),
                    own.assign,
                    shard,
                )
            )
    return items


def _reader(variable: Any) -> Callable[[], tf.Tensor]:
    # Read the variable's own dtype, whatever the policy of mixed precision.
    return lambda: tf.convert_to_tensor(inner_variable(variable))


def _check_shard(name: str, shard: Shard | None) -> None:
    if shard is None or shard.all_ranks is not global_process_set:
        raise NotImplementedError(
            f"Checkpoint: '{name}' is shared out over some ranks alone, or an "
            "optimizer's state for a table that is not known to be. Only what "
            "all ranks of the job have shards of is saved."
        )


def _check_optimizer(optimizer: Any) -> None:
    for each in distributed_optimizers(optimizer):
        options = each._tfring_options
        name = f"the optimizer '{each.name}'"
        if options.process_set is not global_process_set:
            raise NotImplementedError(
                f"Checkpoint: {name} has a process_set, and a checkpoint is of "
                "a training on all ranks. Let one rank of each set save with "
                "keras.callbacks.ModelCheckpoint."
            )
        if isinstance(options.sync, Gossip):
            raise NotImplementedError(
                f"Checkpoint: {name} has sync=tfring.Gossip, with which the "
                "ranks have no common weights until fit ends. Save with "
                "keras.callbacks.ModelCheckpoint, which keeps their mean."
            )


def built_optimizers(model: Any, optimizer: Any = None) -> list[Any]:
    """Returns the optimizers of a model, all of them built."""
    found = optimizers_of(model) if optimizer is None else [optimizer]
    main = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if main is not None and not main.built:
        main.build(model.trainable_variables)
    return [each for each in found if each.built]


def config_of(model: Any) -> str | None:
    """Returns a model as JSON, or None if Keras cannot describe it."""
    try:
        config: str = model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        return None
    return config


def own_items(
    items: Sequence[Item], values: Sequence[Any], rank: int, size: int
) -> list[int]:
    """Returns the numbers of the items that a rank writes.

    Items that are equal on all ranks are divided by size, so that all ranks
    write about equally many bytes. All ranks compute the same division. Ranks
    with the same shard take turns.

    Args:
        items: The items of all ranks, which are the same.
        values: The items' values, in the same order.
        rank: The rank.
        size: The number of ranks.
    """
    bytes_of_rank = [0] * size
    own = [
        n
        for n, item in enumerate(items)
        if item.rule is not Rule.ALIKE
        and (item.shard is None or _writer(item.shard, n) == rank)
    ]
    alike = [n for n, item in enumerate(items) if item.rule is Rule.ALIKE]
    sizes = {n: size_bytes(values[n]) for n in alike}
    for number in sorted(alike, key=lambda n: (-sizes[n], n)):
        writer = bytes_of_rank.index(min(bytes_of_rank))
        bytes_of_rank[writer] += sizes[number]
        if writer == rank:
            own.append(number)
    return sorted(own)


def _writer(shard: Shard, turn: int) -> int:
    """Returns which of the ranks with this rank's shard writes it."""
    ranks = [r for r, each in enumerate(shard.numbers) if each == shard.rank]
    return ranks[turn % len(ranks)]


def size_bytes(value: tf.Tensor) -> int:
    """Returns the size of a value."""
    return int(value.shape.num_elements() * value.dtype.size)

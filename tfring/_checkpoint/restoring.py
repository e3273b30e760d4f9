"""Finds the checkpoint a job continues from, and assigns its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tfring._checkpoint import callback_states
from tfring._checkpoint.contents import Item, Rule
from tfring._checkpoint.folder import Folder
from tfring._core import runtime
from tfring._ops.gather_json import gather_json
from tfring._state.seeds import folded
from tfring._state.splits import Flat, Split, Strided

_Array = np.ndarray[Any, Any]
# The keys of a manifest that describe an item's shard.
_CUT = ("size", "number", "ranges")


class Saved:
    """A complete checkpoint.

    Args:
        folder: The folder of all checkpoints.
        number: The checkpoint's number.

    Attributes:
        manifest: The checkpoint's manifest.
        size: The number of ranks that have written it.
    """

    def __init__(self, folder: Folder, number: int) -> None:
        self.folder = folder
        self.number = number
        self.manifest = folder.manifest(number)
        self.size = int(self.manifest["ranks"])
        self._readers: dict[int, Callable[[str], Any]] = {}
        self._places: dict[str, dict[int, dict[str, Any]]] = {}
        for part in self.manifest["parts"]:
            for item in part["items"]:
                of_rank = self._places.setdefault(item["key"], {})
                of_rank[part["rank"]] = item

    @property
    def path(self) -> str:
        """The path of the checkpoint's folder."""
        return str(self.folder.of_number(self.number))

    def ranks_with(self, key: str) -> dict[int, dict[str, Any]]:
        """Returns the manifest's entries for an item, by rank."""
        return self._places.get(key, {})

    def items(self) -> dict[str, dict[str, Any]]:
        """Returns the manifest's entry for each item, by its key."""
        return {key: ranks[min(ranks)] for key, ranks in self._places.items()}

    @property
    def own_rank(self) -> int:
        """The rank whose part has this rank's states.

        It is rank 0 in a job of another number of ranks.
        """
        return runtime.rank() if self.size == runtime.size() else 0

    def own(self, name: str) -> Any:
        """Returns a state of `own_rank` that is not a tensor."""
        return self.manifest["parts"][self.own_rank][name]

    def read(self, rank: int, key: str) -> _Array:
        """Returns an item of a rank's part."""
        if rank not in self._readers:
            self._readers[rank] = self.folder.open_part(self.number, rank)
        value: _Array = self._readers[rank](key)
        return value

    def read_variant(self, rank: int, key: str) -> tf.Tensor:
        """Returns a tensor of variants of a rank's part."""
        return self.folder.read_variant(self.number, rank, key)

    def whole(self, key: str) -> _Array:
        """Returns the whole value of an item, from the parts of all ranks."""
        ranks = self.ranks_with(key)
        first = min(ranks)
        if ranks[first]["rule"] != Rule.SHARD.value:
            return self.read(first, key)
        # Several ranks may have had the same shard, and one has written it.
        writers = sorted(ranks, key=lambda rank: int(ranks[rank]["number"]))
        parts = [self.read(rank, key) for rank in writers]
        return _split(ranks[first]).joined(np.concatenate(parts))


def _split(described: Mapping[str, Any]) -> Split:
    shape = tuple(described["whole shape"])
    if "ranges" in described:
        return Flat(shape, [(low, high) for low, high in described["ranges"]])
    return Strided(shape, described["size"])


def find(folder: Folder, resume: str) -> Saved | None:
    """Returns the newest checkpoint that is whole; the same on all ranks.

    Collective. Each rank reads some of the parts.

    Args:
        folder: The folder of all checkpoints.
        resume: "auto", "must" or "never".

    Raises:
        RuntimeError: On every rank: there are checkpoints, and none is whole;
            or there are none, and `resume` is "must".
    """
    if resume == "never":
        return None
    rank, size = runtime.rank(), runtime.size()
    numbers = gather_json(folder.numbers(), name="checkpoint/numbers")[0]
    if not numbers and resume == "auto":
        return None
    if not numbers:
        raise RuntimeError(
            f"Checkpoint: in {folder.path} there is no checkpoint, for the "
            f"{size} ranks of this job to go on from. To start over, pass "
            "resume='auto'. If another job has written some, let all ranks see "
            "its folder."
        )
    reasons = []
    for number in numbers:
        own = folder.problem(number, rank, size)
        problems = gather_json(own, name="checkpoint/problem")
        found = next(
            (f"rank {r}: {each}" for r, each in enumerate(problems) if each),
            None,
        )
        if found is None:
            return Saved(folder, number)
        reasons.append(found)
        if rank == 0:
            logging.warning(
                "tfring: checkpoint %d in %s is not whole, and the one before "
                "it is taken: %s.",
                number,
                folder.path,
                found,
            )
    raise RuntimeError(
        f"Checkpoint: in {folder.path} no checkpoint is whole ({reasons[0]}), "
        f"for the {size} ranks of this job to go on from. To start over, name "
        "another folder, or pass resume='never'."
    )


def restore(saved: Saved, items: Sequence[Item]) -> None:
    """Assigns the values of a checkpoint.

    Every rank calls it, but it is not collective.

    Raises:
        ValueError: The checkpoint is of another training.
    """
    takers: Mapping[Rule, Callable[[Saved, Item], None]] = {
        Rule.ALIKE: _take_first,
        Rule.FIRST: _take_first,
        Rule.MEAN: _take_mean,
        Rule.SEED: _take_seed,
        Rule.SHARD: _take_shard,
        Rule.LEFT: lambda *_: None,
        Rule.OWN: _refuse,
    }
    _check_same(saved, items)
    for item in items:
        ranks = saved.ranks_with(item.key)
        if not ranks:
            continue  # Only an item with the rule LEFT may be missing.
        writer = _writer_of_own(saved, item, ranks)
        if writer is not None:
            item.assign(saved.read(writer, item.key))
        else:
            takers[item.rule](saved, item)


def restore_callbacks(saved: Saved, callbacks: Iterable[Any]) -> None:
    """Gives callbacks their states, when `fit` has reset them."""
    callbacks = list(callbacks)
    callback_states.set_states(callbacks, saved.own("callbacks"))
    weights = {}
    for key, count in saved.own("callback weights").items():
        keys = [callback_states.array_key(key, n) for n in range(count)]
        weights[key] = [saved.read(saved.own_rank, each) for each in keys]
    callback_states.set_weights(callbacks, weights)


def _writer_of_own(
    saved: Saved, item: Item, ranks: Mapping[int, Mapping[str, Any]]
) -> int | None:
    """Returns the rank whose part has this rank's own value, or None."""
    if item.shard is None:
        rank = runtime.rank()
        if saved.size != runtime.size() or rank not in ranks:
            return None
        return None if ranks[rank]["rule"] == Rule.SHARD.value else rank
    now = item.describe(item.value())
    for rank, described in ranks.items():
        if all(described.get(n) == now.get(n) for n in _CUT):
            return rank
    return None


def _check_same(saved: Saved, items: Sequence[Item]) -> None:
    own = {item.key: item for item in items}
    for key, described in saved.items().items():
        optional = (Rule.LEFT.value, "extra")
        if key not in own and described["rule"] not in optional:
            raise _another(
                saved, f"it has '{described['name']}', which is not there now"
            )
    for key, item in own.items():
        ranks = saved.ranks_with(key)
        if not ranks:
            if item.rule is Rule.LEFT:
                continue
            raise _another(saved, f"it has nothing for '{item.name}'")
        described = _of_whole(ranks[min(ranks)])
        now = _of_whole(item.describe(item.value()))
        for what in ("rule", "dtype", "shape"):
            if described[what] != now[what]:
                raise _another(
                    saved,
                    f"'{described['name']}' has the {what} "
                    f"{described[what]}, and '{item.name}' now {now[what]}",
                )


def _of_whole(described: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a manifest would say of the item if it were not sharded."""
    if described["rule"] != Rule.SHARD.value:
        return dict(described)
    shape = described["whole shape"]
    return {**described, "rule": Rule.ALIKE.value, "shape": shape}


def _another(saved: Saved, difference: str) -> ValueError:
    return ValueError(
        f"Checkpoint: {saved.path} is of another training: {difference}. Build "
        "and compile the model as before, or name another folder."
    )


def _take_first(saved: Saved, item: Item) -> None:
    item.assign(saved.whole(item.key))


def _take_mean(saved: Saved, item: Item) -> None:
    ranks = saved.ranks_with(item.key)
    values = [saved.read(each, item.key) for each in sorted(ranks)]
    total = np.sum(np.stack(values), axis=0, dtype=np.float64)
    item.assign((total / len(values)).astype(values[0].dtype))


def _take_seed(saved: Saved, item: Item) -> None:
    value = folded(saved.read(0, item.key), runtime.rank())
    item.assign(value.numpy())


def _take_shard(saved: Saved, item: Item) -> None:
    assert item.shard is not None
    item.shard.load(saved.whole(item.key))
    item.shard.forget_loaded()


def _refuse(saved: Saved, item: Item) -> None:
    raise ValueError(
        f"Checkpoint: '{item.name}' is each rank's own, and {saved.path} has "
        f"it of {saved.size} ranks. Start as many ranks; this job has "
        f"{runtime.size()}."
    )

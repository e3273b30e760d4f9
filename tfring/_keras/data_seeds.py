"""Notices datasets that draw the same random numbers on several ranks.

A broadcast folds a model's seeds with the rank, but not those of a dataset:
with one global seed on all ranks, an augmentation in `Dataset.map` changes each
rank's samples in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfring._core.errors import SameDrawsWarning, warn_all_ranks
from tfring._state.seeds import is_seed
from tfring._state.weights import ranks_by_value


def seeds_of(data: Any) -> list[list[int]]:
    """Returns the seeds in a dataset's functions; [] for other data.

    Seeds of `shuffle` are left out, because each rank shuffles its own samples.
    """
    if not isinstance(data, tf.data.Dataset):
        return []
    try:
        return sorted(
            seed
            for function in _functions_of(data)
            for seed in _seeds_in(function)
        )
    except AttributeError:  # private in TensorFlow
        return []


def warn_of_same_draws(
    seeds_of_rank: dict[int, list[list[int]]], own_rank: int
) -> None:
    """Warns if datasets of several ranks have the same result of `seeds_of`."""
    with_seeds = {rank: own for rank, own in seeds_of_rank.items() if own}
    groups = ranks_by_value(with_seeds).values()
    alike = [ranks for ranks in groups if len(ranks) > 1]
    if not alike:
        return
    warn_all_ranks(
        SameDrawsWarning,
        f"the datasets of the ranks {alike[0]} draw the same random "
        "numbers in `map`, because they have the same seed. Call "
        "tf.random.set_seed(seed + tfring.rank()), or keras.utils."
        "set_random_seed, before the dataset is made.",
        is_shown=own_rank == min(seeds_of_rank),
    )


def _functions_of(dataset: Any) -> Iterator[Any]:
    """Yields the mapped functions, from the last to the first."""
    function = getattr(dataset, "_map_func", None)
    if function is not None:
        yield function.function
    for source in dataset._inputs():
        yield from _functions_of(source)


def _seeds_in(function: Any) -> Iterator[list[int]]:
    graph = function.graph.as_graph_def()
    nodes = list(graph.node)
    for inner in graph.library.function:
        nodes += inner.node_def
    for node in nodes:
        seed = [node.attr[name].i for name in ("seed", "seed2")]
        if any(seed):  # TensorFlow replaces 0 by a seed of the process.
            yield seed
    for variable in function.variables:
        if is_seed(variable):
            yield variable.numpy().tolist()

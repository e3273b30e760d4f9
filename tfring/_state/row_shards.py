"""Tables of `tfring.layers.ShardedEmbedding`, which are sharded by rows.

A rank has the rows `i` with `i % size() == rank()` of each such table, and the
same rows of each of the optimizer's states for it.
"""

from __future__ import annotations

from typing import Any

import keras

from tfring._gradients.local_variables import mark_row_shard
from tfring._state.records import record_of
from tfring._state.shards import Shard
from tfring._state.splits import Strided
from tfring._state.weights import variable_name

# Optimizers that update a variable by norms or products of all its elements.
_NOT_BY_ELEMENT = (
    keras.optimizers.Adafactor,
    keras.optimizers.Lamb,
    keras.optimizers.Muon,
)


def shard_rows(variable: Any, count: int, rank: int, size: int) -> None:
    """Marks a Keras variable as the rows of a table that a rank has."""
    mark_row_shard(variable)
    split = Strided((count, *variable.shape[1:]), size)
    record_of(variable).shard = Shard(variable, split, rank)


def has_tables(model: Any) -> bool:
    """Tells whether a model has such tables, built or not."""
    return any(
        getattr(layer, "has_row_shards", False)
        for layer in model._flatten_layers()
    )


def check_can_be_tracked(shard: Shard) -> None:
    """Refuses TensorFlow's checkpoints, which would have one rank's rows."""
    if shard.size > 1:
        raise NotImplementedError(
            f"'{shard.variable.path}' has some rows of a ShardedEmbedding's "
            "table. tf.train.Checkpoint and SavedModel would keep them alone. "
            "Save by model.save or model.save_weights within "
            "tfring.whole_states; to serve the model, take the plain layer "
            "that ShardedEmbedding.to_embedding() gives."
        )


def check_optimizer(optimizer: Any, variable: Any) -> None:
    path = variable_name(variable)
    if isinstance(optimizer, _NOT_BY_ELEMENT):
        raise NotImplementedError(
            f"The optimizer '{optimizer.name}' updates a variable by norms of "
            f"all of it, and a rank has some rows of '{path}', a "
            "ShardedEmbedding's table. Take one that updates element by "
            "element, such as Adam, Adagrad or SGD, instead of "
            f"{', '.join(kind.__name__ for kind in _NOT_BY_ELEMENT)}."
        )
    for clips in ("clipnorm", "global_clipnorm"):
        if getattr(optimizer, clips, None):
            raise ValueError(
                f"The optimizer '{optimizer.name}' has a {clips}, and a rank "
                f"has some rows of '{path}', a ShardedEmbedding's table: the "
                "norm would differ between ranks. Use clipvalue, or "
                "tfring.clip_by_global_norm with a DistributedGradientTape."
            )

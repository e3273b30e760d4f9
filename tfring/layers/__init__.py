"""Keras layers that need all ranks."""

from tfring.layers.sharded_embedding import (
    ShardedEmbedding as ShardedEmbedding,
)

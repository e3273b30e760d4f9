"""ShardedEmbedding: a table of which each rank has some rows.

Note [Ids out of range]: a rank that raised an error for an id alone would leave
the remaining ranks waiting for its rows. So it sends the id to all ranks, in
place of the ids to look up, and every rank raises the error.

Note [Rows of several ranks]: several ranks may look up the same row. The owner
of the row adds up their gradients before the optimizer gets them, because Adam
and Adagrad square gradients. Each rank adds up its own gradients of a row
before it sends them.
"""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring._core import runtime
from tfring._keras.sharded_parameters import not_sharded
from tfring._ops.alltoall import alltoall
from tfring._ops.arguments import own_name
from tfring._ops.autograph import not_converted
from tfring._ops.ordering import traced_for_xla
from tfring._state.records import record_of
from tfring._state.row_shards import check_can_be_tracked, shard_rows
from tfring._state.seeds import folded_seed
from tfring._state.shards import Shard

# The number of elements of a block of initial rows.
_BLOCK_ELEMENTS = 1 << 22


@keras.saving.register_keras_serializable(package="tfring")
class ShardedEmbedding(keras.layers.Layer):
    """`keras.layers.Embedding` with the rows shared out between the ranks.

    Row `i` is on rank `i % size()`, and so are the optimizer's states for it. A
    rank sends the distinct ids of its batch to the owners of the rows, which
    send the rows; the gradients of the rows are sent back. So each rank needs
    `1 / size()` of the memory, and a step sends the rows that it looks up,
    however large the table is. Training equals `keras.layers.Embedding` in one
    process with the batches of all ranks and a dense gradient, within rounding.

    Use it as any layer, with `tfring.DistributedOptimizer` or
    `tfring.DistributedGradientTape`: both know that its rows are each rank's
    own, and take the gradient of the mean over the ranks, or of the sum with
    `op=tfring.Sum`. The optimizer must update element by element, such as SGD,
    Adagrad and Adam, without `clipnorm` and `global_clipnorm`: with a tape,
    clip by `tfring.clip_by_global_norm`.

    Collective, in inference too: every rank must call it equally often. A
    rank's ids may have any number and shape, and may be none. It is not for
    XLA: Keras's `jit_compile="auto"` is False with it.

    Files have the whole table, and load on any number of ranks. Keras's
    callbacks that save in `fit` need nothing else; elsewhere save within
    `tfring.whole_states(model)`. `tfring.load_model` knows the layer;
    `keras.models.load_model` knows it once the program has used its name.

    Args:
        input_dim: The number of rows.
        output_dim: The number of columns.
        embeddings_initializer: Makes the initial rows, some thousands of rows
            at a time. With a seed, the same on any number of ranks.
        mask_zero: As for `keras.layers.Embedding`.
        **kwargs: All arguments of `keras.layers.Layer`.

    Raises:
        NotInitializedError: When it is built, if `init` has not been called.
        NotImplementedError: When it is called under `jit_compile=True`.
        ValueError: `input_dim` or `output_dim` is not a positive integer.
        tf.errors.InvalidArgumentError: When it is called, on every rank, if a
            rank has an id that is not in [0, `input_dim`).

    Example:

    ```python
    import keras
    import numpy as np
    import tfring

    tfring.init()
    words = tfring.layers.ShardedEmbedding(1000, 8)
    model = keras.Sequential([keras.Input((5,), dtype="int32"), words,
                              keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer("adagrad"), "mse")
    ids = np.random.randint(0, 1000, (32, 5))
    model.fit(ids, np.ones((32, 1)), verbose=0, callbacks=[
        tfring.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert words.table().shape == (1000, 8)
    ```
    """

    built: bool
    has_row_shards = True  # read when `fit` begins

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        for name, value in (
            ("input_dim", input_dim),
            ("output_dim", output_dim),
        ):
            is_count = isinstance(value, int) and not isinstance(value, bool)
            if not is_count or value < 1:
                raise ValueError(
                    f"ShardedEmbedding: {name} must be a positive integer, got "
                    f"{value!r}."
                )
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(
            embeddings_initializer
        )
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.supports_jit = False
        self.autocast = False  # ids may be floats, not to be rounded

    def build(self, input_shape: Any = None) -> None:
        del input_shape
        if self.built:
            return
        rank, size = runtime.rank(), runtime.size()
        with not_sharded():
            self.rows = self.add_weight(
                shape=(len(range(rank, self.input_dim, size)), self.output_dim),
                initializer=self._initial_rows,
                name="embeddings",
                autocast=False,
            )
        shard_rows(self.rows, self.input_dim, rank, size)
        self.built = True

    def _initial_rows(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        """Makes all rows block by block, and keeps this rank's."""
        del shape
        rank, size = runtime.rank(), runtime.size()
        block_rows = max(1, _BLOCK_ELEMENTS // self.output_dim)
        parts = []
        for begin in range(0, self.input_dim, block_rows):
            count = min(block_rows, self.input_dim - begin)
            initializer = self._initializer_of_block(begin // block_rows)
            block = initializer((count, self.output_dim), dtype=dtype)
            parts.append(block[(rank - begin) % size :: size])
        return tf.concat(parts, axis=0)

    def _initializer_of_block(self, number: int) -> Any:
        initializer = self.embeddings_initializer
        seed = getattr(initializer, "seed", None)
        if number == 0 or not isinstance(seed, int):
            return initializer
        initializer = copy.copy(initializer)
        initializer.seed = folded_seed(seed, number)
        return initializer

    @not_converted
    def call(self, inputs: Any) -> Any:
        if traced_for_xla():
            raise NotImplementedError(
                f"ShardedEmbedding '{self.name}': ranks look up different "
                "numbers of rows, and XLA needs static shapes. Compile with "
                "jit_compile=False, or leave jit_compile out."
            )
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        ids = tf.cast(inputs, tf.int64)
        rows = _looked_up(
            tf.reshape(ids, [-1]), self.rows.value, self._own_rows(), self.name
        )
        shape = tf.concat([tf.shape(ids), [self.output_dim]], axis=0)
        result = tf.cast(tf.reshape(rows, shape), self.compute_dtype)
        result.set_shape(ids.shape.concatenate([self.output_dim]))
        return result

    def _shard(self) -> Shard:
        shard: Shard = record_of(self.rows).shard
        return shard

    def _own_rows(self) -> Shard:
        shard = self._shard()
        if (shard.rank, shard.size) != (runtime.rank(), runtime.size()):
            raise RuntimeError(
                f"ShardedEmbedding '{self.name}' was built on rank "
                f"{shard.rank} of {shard.size}, and this is rank "
                f"{runtime.rank()} of {runtime.size()}. Build the model again, "
                "and load it from a file."
            )
        return shard

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        del mask
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        return keras.KerasTensor(
            self.compute_output_shape(inputs.shape),
            dtype=self.compute_dtype,
            ragged=inputs.ragged,
        )

    def table(self) -> np.ndarray:
        """Returns the whole table, of shape (`input_dim`, `output_dim`).

        Collective, and eager. The table is in the memory of every rank.
        """
        self.build()
        table = self._own_rows().gather()
        assert table is not None
        return table

    def set_table(self, values: Any) -> None:
        """Sets the rows from a whole table, such as pretrained vectors.

        Call it on every rank with the same values, or on rank 0 before a
        broadcast.

        Args:
            values: An array of shape (`input_dim`, `output_dim`).

        Raises:
            ValueError: `values` has another shape.
        """
        self.build()
        self._own_rows().load(np.asarray(values))

    def to_embedding(self) -> keras.layers.Embedding:
        """Returns a plain Keras layer with the table, for use without tfring.

        Collective, and eager.
        """
        embedding = keras.layers.Embedding(
            self.input_dim,
            self.output_dim,
            embeddings_initializer=self.embeddings_initializer,
            mask_zero=self.mask_zero,
            name=self.name,
            dtype=self.dtype_policy,
            trainable=self.trainable,
        )
        embedding.build()
        embedding.set_weights([self.table()])
        return embedding

    def save_own_variables(self, store: Any) -> None:
        if self.built:
            store["0"] = self._shard().whole()

    def load_own_variables(self, store: Any) -> None:
        self.build()
        self._check_load_own_variables(store)
        self._own_rows().load(store["0"])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "mask_zero": self.mask_zero,
        }

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> Any:
        if self.built:
            check_can_be_tracked(self._shard())
        return super()._trackable_children(save_type, **kwargs)


def _looked_up(
    ids: tf.Tensor, own: tf.Variable, shard: Shard, name: str
) -> tf.Tensor:
    """Returns the row of each id, of a vector of int64. Collective."""
    size, count = shard.size, shard.split.shape[0]
    distinct, places = tf.unique(ids)
    owners = tf.cast(distinct % size, tf.int32)
    by_owner = tf.argsort(owners, stable=True)
    outside = tf.boolean_mask(distinct, _is_outside(distinct, count))
    # See Note [Ids out of range].
    sent, splits = tf.cond(
        tf.size(outside) > 0,
        lambda: (tf.repeat(outside[:1], size), tf.ones([size], tf.int64)),
        lambda: (
            tf.gather(distinct, by_owner),
            tf.math.bincount(
                owners, minlength=size, maxlength=size, dtype=tf.int64
            ),
        ),
    )
    wanted, counts = alltoall(
        sent,
        splits=splits,
        name=own_name("embedding/ids"),
        ignore_name_scope=True,
    )
    with tf.control_dependencies(_checks(wanted, counts, count, name)):
        wanted = tf.identity(wanted)
    # See Note [Rows of several ranks].
    merged, numbers = tf.unique(wanted // size)
    rows, _ = alltoall(
        _repeated(tf.gather(own, merged), numbers),
        splits=counts,
        name=own_name("embedding/rows"),
        ignore_name_scope=True,
    )
    rows.set_shape([None, own.shape[1]])
    return _repeated(
        rows, tf.gather(tf.math.invert_permutation(by_owner), places)
    )


def _is_outside(ids: tf.Tensor, count: int) -> tf.Tensor:
    return (ids < 0) | (ids >= count)


def _checks(
    wanted: tf.Tensor, counts: tf.Tensor, count: int, name: str
) -> list[Any]:
    """Raises if a rank has an id out of range; in a graph, when it runs."""
    is_outside = _is_outside(wanted, count)
    # The message has no quotes, which the error of a graph would escape.
    text = (
        f"ShardedEmbedding {name}: rank {{}} looks up the id {{}}; ids must "
        f"be in [0, {count}), because the table has {count} rows."
    )
    has_outside = tf.reduce_any(is_outside)

    def found() -> tuple[tf.Tensor, tf.Tensor]:
        first = tf.argmax(is_outside)
        rank = tf.math.count_nonzero(tf.cumsum(counts) <= first)
        return rank, wanted[first]

    if tf.executing_eagerly():
        if has_outside:
            message = text.format(*map(int, found()))
            raise tf.errors.InvalidArgumentError(None, None, message)
        return []

    def fail() -> tf.Tensor:
        message = tf.strings.format(text, found())
        with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
            return tf.constant(False)

    return [tf.cond(has_outside, fail, lambda: tf.constant(True))]


@tf.custom_gradient
def _repeated(rows: tf.Tensor, numbers: tf.Tensor) -> Any:
    """Returns `tf.gather`, with a dense gradient and without a warning."""

    def gradient(upstream: Any) -> tuple[tf.Tensor, None]:
        return (
            tf.math.unsorted_segment_sum(
                tf.convert_to_tensor(upstream), numbers, tf.shape(rows)[0]
            ),
            None,
        )

    return tf.gather(rows, numbers), gradient

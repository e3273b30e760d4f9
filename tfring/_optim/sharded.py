"""The mixin class for an optimizer with a share of the states on each rank.

Note [An update by shares]: Keras's own code updates the shares (see
tfring/_gradients/shares.py). To Keras each share is a flat variable, and the
optimizer's variables have the same shape. This class does the steps that are
not element by element. Before the update, it reduces gradients into shares, and
clips them by norms that the ranks add up. It applies weight decay by each
variable's name. After the update, it gathers the weights. If gradients of
several batches are accumulated, each rank keeps whole gradients of its own
batches, as it does without shares, and they are reduced once for each update.

Saved states have the plain optimizer's layout; see tfring/_state/shards.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_variables import (
    inner_variable,
    is_row_shard,
    variable_key,
)
from tfring._gradients.reduced_by_tape import take_reduced
from tfring._gradients.scatter import (
    gather_shares,
    scatter_gradients,
    summed,
)
from tfring._gradients.shares import Layout, Share
from tfring._memory.gathers import assign_share, use_second_gathers
from tfring._memory.parameters import parameter_share
from tfring._ops.autograph import not_converted
from tfring._ops.compression import NoneCompressor, split_engine_cast
from tfring._ops.reductions import ReduceOp
from tfring._optim.optimizer_class import Distributed
from tfring._optim.parameters import check_not_scaled, set_up_parameters
from tfring._state.records import record_of
from tfring._state.shards import Shard
from tfring._state.splits import Flat
from tfring._state.state_shares import WholeStates

# Optimizers that update each element of a variable by itself.
_ELEMENT_WISE = (
    *("SGD", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop"),
    *("Adagrad", "Adadelta", "Ftrl", "Lion"),
)


def check_can_be_sharded(optimizer: Any, options: GradientOptions) -> None:
    """Refuses optimizers and options that do not work with `shard_states=True`.

    Raises:
        NotImplementedError: The message names the optimizer or the option.
    """
    function = "DistributedOptimizer: shard_states=True"
    known = [getattr(keras.optimizers, name) for name in _ELEMENT_WISE]
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    if type(optimizer) not in known:
        raise NotImplementedError(
            f"{function} cuts variables anywhere, so that it is for optimizers "
            f"that update element by element: {', '.join(_ELEMENT_WISE)}, and "
            "a LossScaleOptimizer around one. It does not know "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Leave "
            "it out."
        )
    for problem, advice in _problems(options):
        raise NotImplementedError(f"{function} {problem}. {advice}.")


def _problems(options: GradientOptions) -> Iterator[tuple[str, str]]:
    if options.op is ReduceOp.Adasum:
        yield (
            "cannot combine gradients by op=tfring.Adasum, which needs each "
            "variable's whole gradient",
            "Take tfring.Average or tfring.Sum",
        )
    if options.low_rank is not None:
        yield (
            "gives each rank a part of each gradient, and tfring.PowerSGD "
            "gives the whole one to all",
            "Take tfring.Compression.none, fp16 or bf16",
        )
    rest, _ = split_engine_cast(options.compression, options.op)
    if rest is not NoneCompressor and not isinstance(rest, NoneCompressor):
        yield (
            "packs gradients together, which a compressor of your own does "
            "not know",
            "Take tfring.Compression.none, fp16 or bf16",
        )
    if not options.scale_local_gradients:
        yield (
            "has no local variables, whose gradients "
            "scale_local_gradients=False would leave as they are",
            "Leave it out",
        )
    if options.device_sparse:
        yield (
            "makes sparse gradients dense, so that there is nothing for "
            f"device_sparse={options.device_sparse!r}",
            "Leave it out",
        )


class Sharded(WholeStates, Distributed):
    """Mixed in before a Keras optimizer's class; see the Notes above."""

    def _tfring_begin(self) -> None:
        if self.built:
            self._cut_anew([tf.convert_to_tensor(v) for v in self.variables])

    def _found_in(self, model: Any) -> None:
        # Keras may build the optimizer after it has traced backpropagation.
        set_up_parameters(
            self,
            model.trainable_variables,
            self._tfring_options,
            before_trace=True,
        )

    def build(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            if is_row_shard(variable):
                raise NotImplementedError(
                    f"The optimizer '{self.name}' has shard_states=True, and "
                    f"'{variable.path}' has some rows of a ShardedEmbedding's "
                    "table: a rank keeps the states for these alone already. "
                    "Leave shard_states out."
                )
        if not self.built:
            set_up_parameters(self, variables, self._tfring_options)
            # Attribute tracking is bypassed.
            self.__dict__["_tfring_layout"] = Layout(
                variables, self._tfring_options
            )
            self.__dict__["_tfring_trackables"] = {}
        super().build(variables)

    def add_optimizer_variables(
        self,
        trainable_variables: Sequence[Any],
        name: str | Sequence[str],
        initializer: Any = "zeros",
    ) -> Any:
        return super().add_optimizer_variables(
            self._tfring_layout.shares, name, initializer
        )

    def add_variable_from_reference(
        self,
        reference_variable: Any,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> Any:
        if parameter_share(reference_variable) is not None:
            layout = self._tfring_layout
            reference_variable = layout.shares[
                layout.index_of(reference_variable)
            ]
        if not isinstance(reference_variable, Share):
            return super().add_variable_from_reference(
                reference_variable, name=name, initializer=initializer
            )
        share = reference_variable
        # The variable has the name of the plain optimizer's variable, because
        # a tree of the model's state has names as keys.
        of_variable = self._tfring_layout.names[share.index]
        for separator in "/:":
            of_variable = of_variable.replace(separator, "_")
        variable = self.add_variable(
            shape=share.shape,
            initializer=initializer,
            dtype=share.dtype.name,
            name=f"{of_variable}_{name}",
        )
        layout = self._tfring_layout
        split = Flat(
            tuple(layout.variables[share.index].shape),
            layout.ranges_of(share.index),
        )
        ranks = layout.ranks_of(share.index)
        record_of(variable).shard = Shard(
            variable,
            split,
            ranks.rank,
            ranks.process_set,
            self,
            numbers=ranks.numbers,
        )
        return variable

    def register_local_var(self, var: Any) -> None:
        raise NotImplementedError(
            f"The optimizer '{self.name}' has shard_states=True, with which "
            f"there are no local variables: '{getattr(var, 'path', var)}' "
            "would be updated on one rank alone. Leave shard_states out."
        )

    @not_converted
    def apply(
        self, grads: Sequence[Any], trainable_variables: Any = None
    ) -> None:
        for shard in self._shards().values():
            shard.forget_loaded()
        grads = list(grads)
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        trainable_variables = list(trainable_variables)
        if not grads or not trainable_variables:
            self._apply_by_keras(grads, trainable_variables or None)
            return
        if isinstance(trainable_variables[0], Share):
            self._apply_shares(grads, trainable_variables)
            return
        take_reduced(grads, trainable_variables, self._tfring_options)
        if not self.built:
            self.build(trainable_variables)
        if self._averages_accumulated():
            use_second_gathers()
            self._offload(grads)
            self._apply_by_keras(grads, trainable_variables)
            return
        self._check_variables_are_known(trainable_variables)
        use_second_gathers()
        shared = self._scattered(grads, trainable_variables)
        self._offload(grads)
        self._apply_shares([g for _, g in shared], [s for s, _ in shared])

    def _apply_by_keras(
        self, grads: Sequence[Any], trainable_variables: Any
    ) -> None:
        super(Distributed, self).apply(grads, trainable_variables)

    def _apply_shares(
        self, grads: Sequence[Any], shares: Sequence[Share]
    ) -> None:
        self._apply_by_keras(grads, shares)
        for share in shares:
            variable = self._tfring_layout.variables[share.index]
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    def _reduce_before_check(
        self, grads: Sequence[Any], variables: Any
    ) -> tuple[Sequence[Any], Any]:
        use_second_gathers()
        if self._averages_accumulated():
            check_not_scaled(self, variables)
            return super()._reduce_before_check(grads, variables)
        shared = self._scattered(grads, variables)
        finite = [tf.reduce_all(tf.math.is_finite(g)) for _, g in shared]
        zero_or_nan = summed(
            tf.where(tf.reduce_all(finite), 0.0, float("nan")),
            self._tfring_layout,
        )
        grads = [g + tf.cast(zero_or_nan, g.dtype) for _, g in shared]
        return grads, [share for share, _ in shared]

    def _scattered(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[tuple[Share, tf.Tensor]]:
        """Reduces gradients, and returns the shares to update."""
        grads, variables = self._filter_empty_gradients(grads, variables)
        self._check_step(variables)
        layout = self._tfring_layout
        # The layout has an entry for each variable; None means no gradient.
        of_all: list[Any] = [None] * len(layout.variables)
        for grad, variable in zip(grads, variables, strict=True):
            of_all[layout.index_of(variable)] = grad
        return scatter_gradients(of_all, layout)

    def _check_variables_are_known(self, variables: Sequence[Any]) -> None:
        super()._check_variables_are_known(
            [v for v in variables if not isinstance(v, Share)]
        )

    def _get_variable_index(self, variable: Any) -> int:
        if isinstance(variable, Share):
            return variable.index
        index: int = super()._get_variable_index(variable)
        return index

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        applied = self._tfring_applied
        layout = self._tfring_layout
        if isinstance(applied[0], Share):
            shared = list(zip(applied, grads, strict=True))
        elif self._tfring_paused:  # a LossScaleOptimizer has averaged
            owned = [layout.shares[layout.index_of(v)] for v in applied]
            shared = [
                (share, share.of(grad))
                for share, grad in zip(owned, grads, strict=True)
            ]
        else:
            shared = self._scattered(grads, applied)
        if self._averages_accumulated() and self._tfring_summed_passes != 1:
            shared = [(s, g * self._tfring_summed_passes) for s, g in shared]
        self.__dict__["_tfring_updated"] = [share for share, _ in shared]
        if self.clipnorm and self.clipnorm > 0:
            return self._clipped_by_norms(shared)
        if self.global_clipnorm and self.global_clipnorm > 0:
            return self._clipped_by_global_norm(shared)
        return super(Distributed, self)._clip_gradients([g for _, g in shared])

    def _clipped_by_norms(
        self, shared: Sequence[tuple[Share, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Clips each variable's gradient as `tf.clip_by_norm` does."""
        squares = tf.stack(_sums_of_squares(shared))
        norms = tf.sqrt(summed(squares, self._tfring_layout))
        return [
            grad
            * tf.cast(self.clipnorm, grad.dtype)
            / tf.cast(tf.maximum(norm, self.clipnorm), grad.dtype)
            for (_, grad), norm in zip(
                shared, tf.unstack(norms, len(shared)), strict=True
            )
        ]

    def _clipped_by_global_norm(
        self, shared: Sequence[tuple[Share, tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Clips as Keras does, by the sum of all ranks' squares."""
        squares = tf.add_n(_sums_of_squares(shared))
        norm = tf.sqrt(summed(squares, self._tfring_layout))
        clip = self.global_clipnorm
        scale = clip * tf.minimum(1.0 / norm, 1.0 / clip) + (norm - norm)
        return [grad * tf.cast(scale, grad.dtype) for _, grad in shared]

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: `_decayed` decays weights as it reads them."""

    def _backend_update_step(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        shares: Sequence[Share] = self._tfring_updated
        for share in shares:
            share.value = self._decayed(share)
        super()._backend_update_step(grads, shares, learning_rate)
        self._gather([(share, share.value) for share in shares])
        for share in shares:
            share.value = None

    def _gather(self, values: Sequence[tuple[Share, Any]]) -> None:
        """Gathers the ranks' shares, and assigns them to the variables.

        A sharded parameter gets this rank's share.
        """
        layout = self._tfring_layout
        whole = []
        for share, value in values:
            if share.parameter is None:
                whole.append((share, value))
            else:
                assign_share(share.parameter, tf.convert_to_tensor(value))
        gather_shares(whole, layout)

    def _distributed_tf_update_step(
        self, distribution: Any, grads_and_vars: Any, learning_rate: Any
    ) -> None:
        for grad, share in grads_and_vars:
            self.update_step(grad, share, learning_rate)

    def _decayed(self, share: Share) -> tf.Tensor:
        """Returns a share of the weights after Keras's weight decay."""
        variable = self._tfring_layout.variables[share.index]
        part = share.of(variable)
        if self.weight_decay is None or not self._use_weight_decay(
            inner_variable(variable)
        ):
            return part
        rate = tf.cast(self.learning_rate, part.dtype)
        return part - part * tf.cast(self.weight_decay, part.dtype) * rate

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        layout = self._tfring_layout
        for share in layout.shares:
            share.value = share.of(layout.variables[share.index])
        super()._update_model_variables_moving_average(layout.shares)
        for share in layout.shares:
            share.value = None

    def _overwrite_model_variables_with_average_value(
        self, trainable_variables: Sequence[Any]
    ) -> None:
        averages = map(
            tf.convert_to_tensor, self._model_variables_moving_average
        )
        layout = self._tfring_layout
        trained = set(map(variable_key, trainable_variables))
        self._gather(
            [
                (share, average)
                for share, average in zip(layout.shares, averages, strict=True)
                if variable_key(layout.variables[share.index]) in trained
            ]
        )


def _sums_of_squares(
    shared: Sequence[tuple[Share, tf.Tensor]],
) -> list[tf.Tensor]:
    is_double = any(share.dtype == tf.float64 for share, _ in shared)
    dtype = tf.float64 if is_double else tf.float32
    # Adding up over all ranks counts a share once for each of its copies.
    copies = [
        1 if share.parameter is None else share.parameter.group.ranks.copies
        for share, _ in shared
    ]
    return [
        tf.reduce_sum(tf.square(tf.cast(gradient, dtype))) / count
        for count, (_, gradient) in zip(copies, shared, strict=True)
    ]

"""The mixin class that makes a Keras optimizer average gradients.

Note [One class]: a wrapped optimizer is the same object, with its class
exchanged for a subclass of that class, with the same name and module. So it
keeps its state, and a saved file names the class that Keras knows. Gradients
are averaged at the start of `apply`. But an optimizer that accumulates the
gradients of several batches averages once for each update, in
`_clip_gradients`, which Keras calls after accumulating and before clipping.

Note [Loss scaling]: LossScaleOptimizer skips a step, inside a conditional, if
some gradients are not finite. All ranks must decide alike, or some ranks would
wait in a reduction that other ranks skip. So gradients are averaged before that
check, which spreads infinity and NaN to all ranks. The inner optimizer does not
average again. `compile()` under the policy "mixed_float16" puts Keras's own
LossScaleOptimizer around ours, so tfring patches that class.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfring._gradients.gradient_options import GradientOptions
from tfring._gradients.local_gradients import scale_unless_by_tape
from tfring._gradients.reducer import reduce_shared_gradients
from tfring._memory.activations import offload_step
from tfring._ops.autograph import not_converted
from tfring._state.kinds import mark_accumulators, mark_states
from tfring._state.optimizers import with_inner
from tfring._state.shards import shard_of
from tfring._state.weights import warn_if_not_broadcast

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _Optimizer
else:
    _Optimizer = object  # The Keras class comes next in each subclass's MRO.


def distribute(
    optimizer: Any,
    options: GradientOptions,
    *,
    summed_passes: int,
    mixin: Any,
) -> Any:
    """Exchanges the class of an optimizer, and returns it.

    Args:
        optimizer: A Keras optimizer.
        options: How it reduces gradients.
        summed_passes: Multiplies Keras's mean of accumulated gradients: their
            number, for a sum.
        mixin: `Distributed`, or a subclass of it.
    """
    base: Any = type(optimizer)
    optimizer.__class__ = _distributed_class(base, mixin)
    # Attribute tracking is bypassed: it would treat variables in the options as
    # the optimizer's own.
    optimizer.__dict__["_tfring_options"] = options
    optimizer.__dict__["_tfring_summed_passes"] = summed_passes
    optimizer._tfring_begin()
    return optimizer


def accumulates_as_keras(base: type) -> bool:
    """Tells whether optimizers of a class accumulate by Keras's method."""
    return all(
        getattr(base, method, None)
        is getattr(keras.optimizers.Optimizer, method, method)
        for method in ("apply", "_backend_apply_gradients")
    )


class Distributed(_Optimizer):
    """Mixed in before a Keras optimizer's class; see Note [One class]."""

    # These are no constructor arguments, so that configurations remain Keras's
    # own. An optimizer that is made from a configuration has these defaults.
    _tfring_options = GradientOptions()
    _tfring_summed_passes = 1
    _tfring_applied: Sequence[Any] = ()
    _tfring_paused = False
    # True while a `fit` compares the weights of the ranks.
    _tfring_is_watched = False
    # `_distributed_class` sets these: whether Keras is sure to call
    # `_clip_gradients`, the plain optimizer's class, and the mixin before it.
    _tfring_follows_keras = False
    _tfring_base: Any = None
    _tfring_mixin: Any = None

    def _tfring_begin(self) -> None:
        """Called once the class has been exchanged."""
        if self.built:
            self._mark_variables()

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)
        self._mark_variables()

    @property
    def variables(self) -> Any:
        return _CallableList(super().variables)

    def _mark_variables(self) -> None:
        for each in with_inner(self):
            mark_states(each)
        # Accumulators are each rank's own if the average comes after them.
        if self._averages_accumulated():
            mark_accumulators(self)

    @not_converted
    def apply(
        self, grads: Sequence[Any], trainable_variables: Any = None
    ) -> None:
        if trainable_variables is None:
            variables = self._trainable_variables
        else:
            variables = trainable_variables = list(trainable_variables)
        own = grads = list(grads)
        if not self._tfring_paused:
            self._begin_step(variables)
            options = self._tfring_options
            grads = scale_unless_by_tape(grads, variables, options)
        if not self._averages_accumulated():
            if isinstance(self, keras.optimizers.LossScaleOptimizer):
                self._note_loss_scale(self)
                grads = self._average_overflowing(grads, variables)
            else:
                grads = self._average(grads, variables)
        self._offload(own)
        super().apply(grads, trainable_variables)
        if not self._tfring_paused:
            self._end_step()

    def _begin_step(self, variables: Sequence[Any]) -> None:
        """Called before a step, outside of a LossScaleOptimizer's check."""

    def _end_step(self) -> None:
        """Called after a step, even if the check has skipped the update."""

    def _found_in(self, model: Any) -> None:
        """Called with each model that has this optimizer, before each trace."""

    def _offload(self, grads: Sequence[Any]) -> None:
        """Moves feature maps, after reductions: Note [After reductions]."""
        if not self._tfring_paused:
            offload = self._tfring_options.offload
            offload_step("DistributedOptimizer", grads, offload)

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable to each rank.

        Call it on every rank, before the first step.

        Args:
            var: A variable that this optimizer trains.
        """
        # The default options belong to the class: this optimizer needs its own.
        if "_tfring_options" not in self.__dict__:
            self.__dict__["_tfring_options"] = GradientOptions()
        self._tfring_options.local_variables.add(var)

    def _backend_apply_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        # `_clip_gradients` needs the variables with a gradient. Attribute
        # tracking is bypassed.
        self.__dict__["_tfring_applied"] = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        if self._averages_accumulated():
            grads = self._average(grads, self._tfring_applied)
            if self._tfring_summed_passes != 1:
                grads = [g * self._tfring_summed_passes for g in grads]
        return super()._clip_gradients(grads)

    def _reduce_before_check(
        self, grads: Sequence[Any], variables: Any
    ) -> tuple[Sequence[Any], Any]:
        """Returns the gradients that a LossScaleOptimizer checks and applies.

        Returns:
            Gradients that are finite on all ranks or on none, and the variables
            that they belong to.
        """
        return self._average_overflowing(grads, variables), variables

    def _note_loss_scale(self, optimizer: Any) -> None:
        low_rank = self._tfring_options.low_rank
        if low_rank is not None:
            low_rank.loss_scale = (
                optimizer.dynamic_scale
                if optimizer.built
                else optimizer.initial_scale
            )

    def _average_overflowing(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Averages as `_average` does, for a check that all are finite.

        If a local gradient is not finite on one rank, local gradients become
        NaN on all ranks.
        """
        grads = list(grads)
        local_variables = self._tfring_options.local_variables
        local = [
            i
            for i, variable in enumerate(variables)
            if grads[i] is not None and variable in local_variables
        ]
        if not local or self._tfring_paused:
            return self._average(grads, variables)
        for i in local:
            grads[i] = tf.convert_to_tensor(grads[i])
        finite = [tf.reduce_all(tf.math.is_finite(grads[i])) for i in local]
        zero_or_nan = tf.where(tf.reduce_all(finite), 0.0, float("nan"))
        *grads, zero_or_nan = self._average(
            [*grads, zero_or_nan], [*variables, None]
        )
        for i in local:
            grads[i] += tf.cast(zero_or_nan, grads[i].dtype)
        return grads

    def __reduce__(self) -> tuple[Any, ...]:
        # Keras would copy and pickle the plain optimizer, as when it saves. A
        # copy that does not average would train each rank alone, silently.
        options = self._tfring_options
        if isinstance(options.groups, list) or options.local_variables:
            raise TypeError(
                f"The optimizer '{self.name}' cannot be copied: its groups or "
                "local variables are those of one model. Copy it before "
                "DistributedOptimizer."
            )
        fields = dict(vars(options))
        del fields["local_variables"]  # the copy has its own
        _, (saved,) = super().__reduce__()
        made_of = self._tfring_base, self._tfring_mixin
        return _restore, (made_of, saved, fields, self._tfring_summed_passes)

    def _averages_accumulated(self) -> bool:
        return bool(
            self.gradient_accumulation_steps and self._tfring_follows_keras
        )

    def _average(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        if self._tfring_paused:
            return grads
        self._check_step(variables)
        options = self._tfring_options
        if options.low_rank is not None:
            options.low_rank.begin_at(lambda: self.iterations)
        return reduce_shared_gradients(grads, variables, options)

    def _check_step(self, variables: Sequence[Any]) -> None:
        """Raises, or warns, if a step would make ranks differ."""
        for variable in variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise ValueError(
                    f"DistributedOptimizer cannot train '{variable.path}': "
                    "the variable is overwritten by its gradient (float8 "
                    "quantization), of which there is no average over ranks. "
                    "Train in bfloat16 or float16 instead."
                )
            if (shard := shard_of(variable)) is not None:
                shard.forget_loaded()
        options = self._tfring_options
        if options.local_variables:
            for optimizer in with_inner(self):
                if optimizer.global_clipnorm:
                    raise ValueError(
                        f"The optimizer '{optimizer.name}' has a "
                        "global_clipnorm and local variables. The norm would "
                        "differ between ranks, and drive the variables apart "
                        "that they share. Use clipnorm."
                    )
        if not self._tfring_is_watched:
            warn_if_not_broadcast(variables, options)


class _CallableList(list[Any]):
    """A list to call, as Horovod programs do: `optimizer.variables()`."""

    def __call__(self) -> _CallableList:
        return self


def _restore(
    made_of: tuple[Any, Any],
    saved: Any,
    fields: dict[str, Any],
    summed_passes: int,
) -> Any:
    base, mixin = made_of
    options = GradientOptions(**fields)
    optimizer = base._unpickle_model(saved)
    return distribute(
        optimizer, options, summed_passes=summed_passes, mixin=mixin
    )


@functools.cache
def _distributed_class(base: Any, mixin: Any) -> Any:
    of_keras = getattr(keras.optimizers, base.__name__, None) is base
    distributed = type(
        base.__name__,
        (mixin, base),
        {
            "__module__": "keras.optimizers" if of_keras else base.__module__,
            "__doc__": base.__doc__,
            "_tfring_follows_keras": accumulates_as_keras(base),
            "_tfring_base": base,
            "_tfring_mixin": mixin,
        },
    )
    registered_name = keras.saving.get_registered_name(base)
    if keras.saving.get_registered_object(registered_name) is base:
        # Both classes are saved under the name of `base`, which loads `base`.
        package, name = registered_name.split(">", maxsplit=1)
        keras.saving.register_keras_serializable(package, name)(distributed)
        keras.saving.get_custom_objects()[registered_name] = base
    return distributed

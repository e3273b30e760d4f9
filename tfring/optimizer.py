"""DistributedOptimizer: any Keras optimizer, on averaged gradients.

Note [One class]: a wrapped optimizer is the same object, whose class
has been exchanged for a subclass of the class it had, with the same name and
module. So it keeps its state, and a saved file names the class that Keras
knows. Gradients are averaged where they come in, in `apply`; but an optimizer
that accumulates the gradients of several batches averages once for each update,
in `_clip_gradients`, which Keras calls after accumulating and before clipping.

Note [Loss scaling]: LossScaleOptimizer skips a step whose gradients are not all
finite, inside a conditional. Each rank must come to the same decision, or some
would wait in a reduction that others skip. So gradients are averaged before
that check, where infinity and NaN spread to all ranks, and the optimizer inside
averages no more. `compile()` under the policy "mixed_float16" puts a
LossScaleOptimizer of Keras's own around ours; hence the patch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras

from tfring import _runtime
from tfring._arguments import gradient_options
from tfring.chains import ReduceOp
from tfring.compression import Compression
from tfring.reducer import reduce_gradients

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _Optimizer
else:
    _Optimizer = object  # The class to come next is found in each instance's.


def DistributedOptimizer(  # noqa: N802 (the name that Horovod's users know)
    optimizer: keras.optimizers.Optimizer,
    *,
    sparse_as_dense: bool = False,
    compression: Compression = Compression.none,
    op: ReduceOp = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over all ranks.

    Use it in place of the optimizer, in `model.compile` or in a training loop.
    Every rank then applies the same update, provided that all have started from
    the same weights (`BroadcastGlobalVariablesCallback`). Gradients are clipped
    after they have been averaged. With `gradient_accumulation_steps` they are
    averaged once for each update; inside a `LossScaleOptimizer` for each batch,
    since the ranks must skip a batch together.

    The learning rate stays what it is. As the batch of a step is `size()` times
    as large, scale it, as a rule, by `tfring.size()`.

    Applying gradients is collective: every rank must do it, for the same
    variables.

    Args:
        optimizer: Any Keras 3 optimizer. It is changed and returned, not
            copied, so that its state and settings remain.
        sparse_as_dense: Whether gradients of embeddings, `tf.IndexedSlices`,
            are made dense. Worth it where most rows are used in every step.
            Must agree across ranks. Under `jit_compile` they always are. What
            is dense is clipped by its true norm; of `tf.IndexedSlices` Keras
            counts repeated rows one by one.
        compression: `tfring.Compression.none`, `fp16` or `bf16`: in which dtype
            larger floats travel, and are added. Must agree across ranks.
        op: `tfring.Average` or `tfring.Sum` of the ranks' gradients. Must agree
            across ranks.
        gradient_predivide_factor: Splits the division of an average: gradients
            are divided by it before they are added, and the sum by
            `size() / gradient_predivide_factor`. So the sum of many ranks stays
            within the range of float16. Must agree across ranks.
        backward_passes_per_step: 1. To accumulate the gradients of several
            batches, give `optimizer` its `gradient_accumulation_steps`.

    Returns:
        `optimizer` itself. What is saved from it loads in plain Keras, and must
        then be wrapped again.

    Raises:
        NotInitializedError: `tfring.init()` has not been called.
        TypeError: `optimizer` is not a Keras 3 optimizer, or another argument
            is of a wrong type.
        ValueError: `optimizer` is wrapped already, Keras does not run on
            TensorFlow, `op` is neither average nor sum, or there is nothing
            for `gradient_predivide_factor` to divide.

    Example:

    ```python
    import keras
    import tfring

    tfring.init()
    optimizer = keras.optimizers.SGD(0.01 * tfring.size(), momentum=0.9)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    ```
    """
    _runtime.size()  # Raises before `init`.
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "tfring needs Keras on its TensorFlow backend, and Keras runs on "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer wraps instances of keras.optimizers."
            f"Optimizer (Keras 3), got {optimizer!r} of type "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Make "
            "the optimizer with keras.optimizers; with any other, average the "
            "gradients by tfring.DistributedGradientTape."
        )
    if any(isinstance(o, _Distributed) for o in _with_inner(optimizer)):
        raise ValueError(
            f"The optimizer '{optimizer.name}' is distributed already: "
            "DistributedOptimizer changes the optimizer that it is given. "
            "Wrap an optimizer once."
        )
    if backward_passes_per_step != 1:
        raise ValueError(
            "DistributedOptimizer: backward_passes_per_step must be 1, got "
            f"{backward_passes_per_step!r}. Keras 3 accumulates by itself: "
            f"make the optimizer '{optimizer.name}' with "
            f"gradient_accumulation_steps={backward_passes_per_step!r}. It "
            "applies the mean of that many batches, where Horovod applied, by "
            "default, their sum."
        )
    options = gradient_options(
        "DistributedOptimizer",
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
    )
    return _distribute(optimizer, options)


def _distribute(optimizer: Any, options: dict[str, Any]) -> Any:
    _teach_loss_scale_optimizer()
    base: Any = type(optimizer)
    optimizer.__class__ = _distributed_class(base)
    optimizer._tfring_options = options
    return optimizer


class _Distributed(_Optimizer):
    """Stands before a Keras optimizer's class; see Note [One class]."""

    # Not constructor arguments, so that configurations remain Keras's own.
    _tfring_options: Mapping[str, Any] = {}  # of reduce_gradients
    _tfring_paused = False
    # Set for each class: whether `_clip_gradients` is certain to be called.
    _tfring_follows_keras = False

    def apply(
        self, grads: Sequence[Any], trainable_variables: Any = None
    ) -> None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not self._averages_accumulated():
            grads = self._average(
                grads,
                self._trainable_variables
                if trainable_variables is None
                else trainable_variables,
            )
        super().apply(grads, trainable_variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        if self._averages_accumulated():
            grads = self._average(grads, self._trainable_variables)
        return super()._clip_gradients(grads)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keras copies and pickles an optimizer as it saves one, as its plain
        # self. A copy that no longer averages would train without a word.
        _, (saved,) = super().__reduce__()
        base = type(self).__mro__[2]
        return _restore, (base, saved, dict(self._tfring_options))

    def _averages_accumulated(self) -> bool:
        return bool(
            self.gradient_accumulation_steps and self._tfring_follows_keras
        )

    def _average(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        if self._tfring_paused:
            return grads
        grads = list(grads)
        if len(grads) != len(variables):
            # Keras leaves out variables without a gradient when it accumulates.
            variables = [None] * len(grads)
        for variable in variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise ValueError(
                    f"DistributedOptimizer cannot train '{variable.path}': "
                    "the variable is overwritten by its gradient (float8 "
                    "quantization), of which there is no average over ranks. "
                    "Train in bfloat16 or float16 instead."
                )
        return reduce_gradients(grads, variables, **self._tfring_options)


def _restore(base: Any, saved: Any, options: dict[str, Any]) -> Any:
    return _distribute(base._unpickle_model(saved), options)


@functools.cache
def _distributed_class(base: Any) -> Any:
    of_keras = getattr(keras.optimizers, base.__name__, None) is base
    distributed = type(
        base.__name__,
        (_Distributed, base),
        {
            "__module__": "keras.optimizers" if of_keras else base.__module__,
            "__doc__": base.__doc__,
            "_tfring_follows_keras": all(
                getattr(base, method, None)
                is getattr(keras.optimizers.Optimizer, method, method)
                for method in ("apply", "_backend_apply_gradients")
            ),
        },
    )
    registered_name = keras.saving.get_registered_name(base)
    if keras.saving.get_registered_object(registered_name) is base:
        # Saved under the same name, which goes on to stand for `base`.
        package, name = registered_name.split(">", maxsplit=1)
        keras.saving.register_keras_serializable(package, name)(distributed)
        keras.saving.get_custom_objects()[registered_name] = base
    return distributed


def _with_inner(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and those inside a LossScale- or a MultiOptimizer."""
    yield optimizer
    inner = [getattr(optimizer, "inner_optimizer", None)]
    for each in [*inner, *getattr(optimizer, "optimizers", ())]:
        if each is not None:
            yield from _with_inner(each)


@functools.cache
def _teach_loss_scale_optimizer() -> None:
    """Lets it average before it looks; see Note [Loss scaling]."""
    loss_scale_optimizer = keras.optimizers.LossScaleOptimizer
    keras_apply = loss_scale_optimizer.apply

    @functools.wraps(keras_apply)
    def apply(
        self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> None:
        inside = [
            optimizer
            for optimizer in _with_inner(self)
            if isinstance(optimizer, _Distributed)
        ]
        if not inside or self in inside:
            keras_apply(self, grads, trainable_variables)
            return
        if trainable_variables is None:
            variables = self._trainable_variables
        else:
            variables = trainable_variables = list(trainable_variables)
        grads = inside[0]._average(grads, variables)
        with _paused(inside):
            keras_apply(self, grads, trainable_variables)

    loss_scale_optimizer.apply = apply


@contextmanager
def _paused(optimizers: Sequence[_Distributed]) -> Iterator[None]:
    for optimizer in optimizers:
        optimizer._tfring_paused = True
    try:
        yield
    finally:
        for optimizer in optimizers:
            optimizer._tfring_paused = False

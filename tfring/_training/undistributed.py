"""A warning to who trains on several ranks and reduces nothing.

An optimizer that Keras makes anew from its configuration, as `load_model` and
`compile_from_config` do, is no longer distributed. Each rank then trains a
model of its own, which shows in no error. So `tfring.init` has each Keras model
looked at when it gets its train function, which `fit` and `train_on_batch` make
once.

Keras's own `train_step` leaves it to the optimizer to reduce gradients. One of
a user's may do it by itself, by a tape or any collective, so that its first
call is watched.
"""

from __future__ import annotations

import functools
from typing import Any

import keras

from tfring._core import runtime
from tfring._core.errors import NotDistributedWarning, warn_all_ranks
from tfring._gradients.reducer import count_of_calls
from tfring._ops.ordering import count_of_starts
from tfring._state.optimizers import distributed_optimizers
from tfring._training.loss_reductions import warn_of_reductions

_warned = False


def trainer_class() -> Any:
    """The base class of all Keras models that has `fit`."""
    return next(
        base
        for base in keras.Model.__mro__
        if "make_train_function" in vars(base)
    )


@functools.cache
def watch_models() -> None:
    """Has all Keras models looked at that are trained from here on."""
    if keras.backend.backend() != "tensorflow":
        return
    trainer = trainer_class()
    keras_make = trainer.make_train_function

    @functools.wraps(keras_make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.train_function
        for optimizer in distributed_optimizers(self):
            optimizer._found_in(self)
        result = keras_make(self, *args, **kwargs)
        if self.train_function is not before:
            _look_at(self)
            warn_of_reductions(self)
        return result

    trainer.make_train_function = make_train_function


def _look_at(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    if (
        _warned
        or not runtime.is_initialized()
        or runtime.size() == 1
        or optimizer is None
        or distributed_optimizers(optimizer)
    ):
        return
    if type(model).train_step is keras.Model.train_step:
        warn(f"the optimizer '{optimizer.name}' is not distributed")
        return
    train_function = model.train_function

    @functools.wraps(train_function)
    def first_call(*args: Any) -> Any:
        model.train_function = train_function
        before = count_of_calls(), count_of_starts()
        result = train_function(*args)
        # The first also in a process set of one rank.
        if (count_of_calls(), count_of_starts()) == before:
            warn(
                f"the train_step of {type(model).__name__} reduces nothing, "
                f"and the optimizer '{optimizer.name}' is not "
                "distributed"
            )
        return result

    model.train_function = first_call


def warn(
    problem: str,
    remedy: str = "Compile the model with "
    "tfring.DistributedOptimizer(optimizer); load it with tfring.load_model.",
) -> None:
    """Warns of it once in a process, on several ranks."""
    global _warned
    if _warned:
        return
    _warned = True
    warning = NotDistributedWarning(
        f"tfring: {problem}, so that each of {runtime.size()} ranks trains a "
        f"model of its own. {remedy} If that is meant, ignore this by "
        "warnings.simplefilter('ignore', tfring.NotDistributedWarning)."
    )
    warn_all_ranks(warning, is_shown=runtime.rank() == 0)

"""Inspects models when Keras makes their train and test functions.

`fit` and `train_on_batch` make the train function once. Keras's own
`train_step` leaves the reduction of gradients to the optimizer. A user's
`train_step` may reduce them itself, by a tape or any collective, so its first
call is watched.

Ranks validate on as much data as each has, and one rank may evaluate alone. So
`tfring.global_mean`, a loss that counts the elements of all ranks in training,
must count only this rank's elements in validation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from tfring._core import runtime
from tfring._gradients.reducer import count_of_calls
from tfring._keras.loss_reductions import warn_of_reductions
from tfring._ops.global_mean import counting_own_elements
from tfring._ops.ordering import count_of_starts
from tfring._optim.parameters import check_knows_parameters
from tfring._optim.undistributed import warn_not_distributed
from tfring._state.optimizers import distributed_optimizers


def make_train_function(
    keras_make: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Tells optimizers about their model, and warns if nothing reduces."""
    before = model.train_function
    if getattr(model, "optimizer", None) is not None:
        check_knows_parameters(model.optimizer, model.trainable_variables)
    for optimizer in distributed_optimizers(model):
        optimizer._found_in(model)
    result = keras_make(model, *args, **kwargs)
    if model.train_function is not before:
        _look_at(model)
        warn_of_reductions(model)
    return result


def _look_at(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    if (
        not runtime.is_initialized()
        or runtime.size() == 1
        or optimizer is None
        or distributed_optimizers(optimizer)
    ):
        return
    if type(model).train_step is keras.Model.train_step:
        warn_not_distributed(
            f"the optimizer '{optimizer.name}' is not distributed"
        )
        return
    train_function = model.train_function

    @functools.wraps(train_function)
    def first_call(*args: Any) -> Any:
        model.train_function = train_function
        before = count_of_calls(), count_of_starts()
        result = train_function(*args)
        # In a process set of one rank, reductions are called but not started.
        if (count_of_calls(), count_of_starts()) == before:
            warn_not_distributed(
                f"the train_step of {type(model).__name__} reduces nothing, "
                f"and the optimizer '{optimizer.name}' is not "
                "distributed"
            )
        return result

    model.train_function = first_call


def make_test_function(
    keras_make: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Makes losses count only this rank's elements in an evaluation."""
    before = model.test_function
    result = keras_make(model, *args, **kwargs)
    if model.test_function is not before:
        model.test_function = _evaluating(model.test_function)
    return result


def _evaluating(test_function: Any) -> Any:
    @functools.wraps(test_function)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        with counting_own_elements():  # in a trace or eagerly
            return test_function(*args, **kwargs)

    return evaluate

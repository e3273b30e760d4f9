"""Replaces Keras's `compile`, for models with distributed optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from tfring._state.optimizers import distributed_optimizers

# The function of the innermost open `distributing` context.
_distribute: ContextVar[Callable[[Any], Any] | None] = ContextVar(
    "distribute", default=None
)


@contextmanager
def distributing(distribute: Callable[[Any], Any]) -> Iterator[None]:
    """Wraps the optimizers of the models that are loaded inside.

    Keras compiles a model before it builds the optimizer and loads the states,
    so no rank holds whole states of a sharded optimizer.
    """
    token = _distribute.set(distribute)
    try:
        yield
    finally:
        _distribute.reset(token)


def compile_model(
    keras_compile: Callable[..., None], model: Any, *args: Any, **kwargs: Any
) -> None:
    """Compiles a model; see `distributing`.

    Keras chooses XLA by itself where there is a GPU. Some options do not work
    under XLA; with them the choice is that of a machine without a GPU.

    Raises:
        NotImplementedError: The caller asks for XLA, and an option does not
            work under it.
    """
    distribute = _distribute.get()
    optimizer = kwargs.get("optimizer")
    if distribute and isinstance(optimizer, keras.optimizers.Optimizer):
        kwargs["optimizer"] = distribute(optimizer)
    keras_compile(model, *args, **kwargs)
    if model.optimizer is None or not model.jit_compile:
        return
    without_xla = [
        argument
        for each in distributed_optimizers(model.optimizer)
        if (argument := each._tfring_options.argument_without_xla())
    ]
    if not without_xla:
        return
    bound = inspect.signature(keras_compile).bind(model, *args, **kwargs)
    # A file has what Keras chose, or was told, when the model was compiled.
    if distribute or bound.arguments.get("jit_compile", "auto") == "auto":
        model.jit_compile = False
        return
    raise NotImplementedError(
        f"compile: DistributedOptimizer's {without_xla[0]} does not work with "
        "jit_compile=True. Pass jit_compile=False, or leave jit_compile out."
    )

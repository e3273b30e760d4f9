"""Keeps AutoGraph out of tfring, where it has nothing to convert."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_F = TypeVar("_F", bound=Callable[..., Any])


def not_converted(function: _F) -> _F:
    """Keeps AutoGraph out of a function that a user's graph may call.

    No control flow of tfring depends on tensors. AutoGraph would still look for
    such control flow when a `tf.function` is first traced, in each function
    that the function calls, down to the standard library. That takes 5 s
    instead of 0.2 s.
    """
    in_graphs = tf.autograph.experimental.do_not_convert(function)

    # `wraps` copies the attributes by which AutoGraph recognizes `in_graphs`.
    # Eager calls skip `in_graphs`, which would cost some microseconds.
    @functools.wraps(in_graphs)
    def call(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return function(*args, **kwargs)
        return in_graphs(*args, **kwargs)

    return cast(_F, call)

"""If ranks disagree, every rank gets the details, and the job continues."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from helpers import MODES, assert_alike

import tfring

NAME = "disagreement"
# The tests below avoid int32, because int32 tensors are in host memory even
# with GPUs. That would be another disagreement.


def of_reductions(reduce, odd):
    """Differences that any reduction can have."""
    rows = tfring.size()
    return {
        "shapes": lambda: reduce(tf.ones([rows + odd])),
        "dtypes": lambda: reduce(
            tf.ones([rows], tf.float64 if odd else tf.float32)
        ),
        "ops": lambda: reduce(
            tf.ones([rows]), op=tfring.Min if odd else tfring.Max
        ),
        "factors": lambda: reduce(tf.ones([rows]), prescale_factor=1.0 + odd),
        "collectives": lambda: (
            tfring.broadcast(tf.ones([rows]), 0, name=NAME)
            if odd
            else reduce(tf.ones([rows]))
        ),
    }


def of_wires(reduce, odd):
    """Further differences in collectives with a cast in the engine."""
    compression = tfring.Compression
    return {
        "dtypes on the wire": lambda: reduce(
            tf.ones([3]),
            compression=compression.fp16 if odd else compression.bf16,
        ),
    }


def of_rows(move, odd):
    """Differences in collectives that move rows."""
    rows = tfring.size()
    return {
        "shapes": lambda: move(tf.ones([rows, 3 + odd])),
        "ranks": lambda: move(tf.ones([rows, 1] if odd else [rows])),
        "dtypes": lambda: move(
            tf.ones([rows], tf.float64 if odd else tf.uint16)
        ),
        "collectives": lambda: (
            tfring.allreduce(tf.ones([rows]), name=NAME)
            if odd
            else move(tf.ones([rows]))
        ),
    }


def of_groups(grouped, odd):
    """Further differences in groups, with and without reduction."""
    rows = tfring.size()
    ones = tf.ones([rows, 1])
    return {
        "numbers of tensors": lambda: grouped([ones] * (2 + odd)),
        "shapes of 'tensor 2'": lambda: grouped(
            [ones, tf.ones([1], tf.int64), tf.ones([rows, 3 + odd])]
        ),
    }


def disagreements(odd):
    """Returns calls by collective and by the difference on the odd rank."""

    def named(function):
        return lambda *args, **options: function(*args, name=NAME, **options)

    def alone(function):
        grouped = named(function)
        return lambda tensor, **options: grouped([tensor], **options)

    ones = tf.ones([2])
    return {
        "allreduce": of_reductions(named(tfring.allreduce), odd)
        | of_wires(named(tfring.allreduce), odd),
        "grouped_allreduce": of_reductions(alone(tfring.grouped_allreduce), odd)
        | of_wires(alone(tfring.grouped_allreduce), odd)
        | of_groups(named(tfring.grouped_allreduce), odd),
        "broadcast": {
            "shapes": lambda: tfring.broadcast(
                tf.ones([2 + odd]), 0, name=NAME
            ),
            "dtypes": lambda: tfring.broadcast(
                tf.cast(ones, tf.uint16 if odd else tf.int64), 0, name=NAME
            ),
            "root ranks": lambda: tfring.broadcast(ones, odd, name=NAME),
        },
        "reducescatter": of_reductions(named(tfring.reducescatter), odd),
        "grouped_reducescatter": of_reductions(
            alone(tfring.grouped_reducescatter), odd
        )
        | of_groups(named(tfring.grouped_reducescatter), odd),
        "allgather": of_rows(named(tfring.allgather), odd),
        "grouped_allgather": of_rows(alone(tfring.grouped_allgather), odd)
        | of_groups(named(tfring.grouped_allgather), odd),
        "alltoall": of_rows(named(tfring.alltoall), odd),
        "barrier": {
            "collectives": lambda: (
                tfring.barrier(name=NAME)
                if odd
                else tfring.broadcast(ones, 0, name=NAME)
            )
        },
    }


WITH_XLA = ("allreduce", "grouped_allreduce", "broadcast")


@pytest.mark.parametrize(
    ("collective", "mode"),
    [
        (collective, mode)
        for collective in (
            *(*WITH_XLA, "reducescatter", "grouped_reducescatter"),
            *("allgather", "grouped_allgather", "alltoall", "barrier"),
        )
        for mode in MODES
        if mode != "xla" or collective in WITH_XLA
    ],
    indirect=["mode"],
)
def test_every_rank_learns_of_it(collective, mode, several_ranks, rank, size):
    for what, call in disagreements(int(rank == 1))[collective].items():
        function = mode(call)
        for _ in range(2):
            with pytest.raises(tf.errors.FailedPreconditionError) as error:
                function()
            # This removes the text that TensorFlow adds about the operation.
            message = re.search(r"[a-z]+ of '.*\.", error.value.message)[0]
            assert f"'{NAME}" in message, what
            words = "shapes" if what == "ranks" else what
            assert f"{words} differ. Rank " in message, what
            assert "ank 1 sent " in message, what
            assert_alike(message)
        # The job continues, and may use the name again.
        result = tfring.allreduce(tf.ones([2]), op=tfring.Sum, name=NAME)
        np.testing.assert_array_equal(result, [size, size], err_msg=what)

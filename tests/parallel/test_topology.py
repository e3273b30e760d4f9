"""size_op and its like: asked when they are evaluated."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfring


def asked(process_set_id=0):
    return [
        tfring.size_op(process_set_id),
        tfring.rank_op(),
        tfring.local_size_op(),
        tfring.local_rank_op(),
        tfring.process_set_included_op(process_set_id),
    ]


@pytest.mark.parametrize("mode", ["eager", "graph", "xla", "session"])
def test_of_the_job_and_of_a_set(mode, sets, rank, size):
    def evaluate(process_set_id):
        if mode == "session":
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                return session.run(asked(process_set_id))
        if mode == "eager":
            return asked(process_set_id)
        return tf.function(asked, jit_compile=mode == "xla")(process_set_id)

    local = [tfring.local_size(), tfring.local_rank()]
    results = evaluate(0)
    assert [int(result) for result in results] == [size, rank, *local, 1]
    for result in results:
        assert result.dtype == tf.int32
        assert result.shape == ()
    if size > 1:
        [last] = sets([size - 1])
        included = int(rank == size - 1)
        results = evaluate(last.process_set_id)
        assert [int(r) for r in results] == [1, rank, *local, included]


def test_a_graph_outlives_a_process_set(rank, several_ranks):
    first = tfring.add_process_set([0])

    @tf.function
    def included():
        return tfring.process_set_included_op(first_id)

    @tf.function
    def set_size():
        return tfring.size_op(first_id)

    first_id = first.process_set_id
    assert included() == int(rank == 0)
    assert set_size() == 1
    tfring.remove_process_set(first)
    assert included() == -3
    with pytest.raises(tf.errors.InvalidArgumentError, match="process set"):
        set_size()
    with pytest.raises(ValueError, match="process set"):
        tfring.size_op(first_id)

"""Graphs and sessions of TensorFlow 1."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers import DTYPES

import tfring
from tfring._core import runtime

v1 = tf.compat.v1


def test_every_collective_and_dtype(session, rank, size):
    """In one run, so that they start in any order."""
    expected = {}
    for dtype in DTYPES:
        arrays = [
            (np.arange(2 * size * (r + 1)) % 2)
            .reshape(-1, 2)
            .astype(dtype.as_numpy_dtype)
            for r in range(size)
        ]
        own = tf.constant(arrays[rank])
        same = own[:size]
        first = arrays[0]
        add = np.logical_or.reduce if dtype == tf.bool else np.sum
        total = add([first] * size, axis=0).astype(first.dtype)
        for result, value in [
            (tfring.allreduce(same, op=tfring.Sum), total),
            (tfring.grouped_allreduce([same], op=tfring.Max)[0], first),
            (tfring.allgather(own), np.concatenate(arrays)),
            (tfring.grouped_allgather([own])[0], np.concatenate(arrays)),
            (tfring.broadcast(same, size - 1), first),
            (tfring.reducescatter(same, op=tfring.Sum), total[rank][None]),
            (tfring.alltoall(same), first[rank][None].repeat(size, axis=0)),
        ]:
            expected[result.ref()] = value
    for _ in range(2):
        results = session.run([ref.deref() for ref in expected])
        for result, value in zip(results, expected.values(), strict=True):
            assert result.dtype == value.dtype
            np.testing.assert_array_equal(result, value)


def test_only_what_is_fetched_runs(session, rank, size):
    count = v1.get_variable("count", initializer=0, use_resource=True)
    with tf.control_dependencies([count.assign_add(1)]):
        tfring.allreduce(tf.identity(count), op=tfring.Sum)
    later = tfring.allreduce(tf.constant(1), op=tfring.Sum)
    session.run(v1.global_variables_initializer())
    assert session.run(later) == size
    assert session.run(count) == 0


def test_one_result_of_a_group_completes_it(session, rank, size):
    results = tfring.grouped_allreduce([tf.constant(1), tf.constant(2.0)])
    for _ in range(3):
        assert session.run(results[0]) == 1
    assert session.run(results) == [1, 2]


def test_disagreement(session, rank, several_ranks):
    bad = tfring.allreduce(tf.ones([2 + rank]), name="odd")
    good = tfring.allreduce(tf.ones([2]), name="odd")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'odd'"):
        session.run(bad)
    np.testing.assert_array_equal(session.run(good), [1, 1])


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("limit_bytes", [16, 64 << 20])
def test_broadcast_global_variables(
    limit_bytes, use_resource, session, rank, size, monkeypatch
):
    monkeypatch.setattr(runtime, "fusion_threshold_bytes", lambda: limit_bytes)
    root = size - 1
    initial = [
        tf.cast(tf.constant([[1, 2], [3, 4]]) * (rank + 1), dtype)
        for dtype in (tf.float32, tf.int64, tf.complex64, tf.bfloat16)
    ]
    variables = [
        v1.get_variable(f"v{i}", initializer=value, use_resource=use_resource)
        for i, value in enumerate(initial)
    ]
    from_root = tfring.broadcast_global_variables(root)
    values = tfring.broadcast_(variables, 0)
    session.run(v1.global_variables_initializer())
    expected = np.array([[1, 2], [3, 4]])
    session.run(from_root)
    for value in session.run(variables):
        np.testing.assert_array_equal(value, expected * size)
    session.run([variable.assign(variable * 2) for variable in variables[:1]])
    session.run([v1.assign(variables[1], initial[1])])
    changed = session.run(values)
    np.testing.assert_array_equal(changed[0], expected * 2 * size)
    np.testing.assert_array_equal(changed[1], expected)
    np.testing.assert_array_equal(session.run(variables[1]), expected)


def test_the_hook_in_a_monitored_session(rank, size, tmp_path):
    hook = tfring.BroadcastGlobalVariablesHook(size - 1, device="/cpu:0")
    for _ in range(2):  # a hook may see several graphs
        with tf.Graph().as_default() as graph:
            weight = v1.get_variable("weight", initializer=[float(rank)] * 3)
            step = v1.assign_sub(
                weight, tfring.allreduce(tf.fill([3], rank + 0.0))
            )
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(weight).tolist() == [size - 1.0] * 3
                session.run(step)
                expected = size - 1 - (size - 1) / 2
                assert session.run(weight).tolist() == [expected] * 3
            starts = [
                operation
                for operation in graph.get_operations()
                if operation.type == "TfringBroadcastStart"
            ]
            assert {start.device for start in starts} <= {"/device:CPU:0"}
            assert bool(starts) == (size > 1)


def test_eagerly_there_are_no_global_variables():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        tfring.broadcast_global_variables(0)
    with pytest.raises(ValueError, match="root_rank"):
        tfring.BroadcastGlobalVariablesHook(-1)

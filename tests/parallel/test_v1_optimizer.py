"""Optimizers of TensorFlow 1, in graphs, sessions, functions and eagerly."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_same_on_all_ranks

import tfring

v1 = tf.compat.v1


def losses(rank):
    """Returns a dense variable, an embedding and a loss, different by rank."""
    dense = v1.get_variable("dense", initializer=[1.0, 2.0], use_resource=True)
    table = v1.get_variable(
        "table", initializer=tf.zeros([4, 1]), use_resource=True
    )
    rows = tf.gather(table, [0, 0, 1 + rank % 3])
    return dense, table, tf.reduce_sum(dense) * rank + tf.reduce_sum(rows)


def table_mean(size):
    mean = np.zeros([4, 1])
    for rank in range(size):
        for row in (0, 0, 1 + rank % 3):
            mean[row] += 1 / size
    return mean


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_minimize(session, sparse_as_dense, rank, size):
    dense, table, loss = losses(rank)
    optimizer = tfring.DistributedOptimizer(
        v1.train.MomentumOptimizer(1.0, 0.5), sparse_as_dense=sparse_as_dense
    )
    steps = v1.train.get_or_create_global_step()
    train = optimizer.minimize(loss, global_step=steps)
    session.run(v1.global_variables_initializer())
    session.run(train)
    session.run(train)
    assert session.run(steps) == 2
    mean = (size - 1) / 2
    moved = [1 - 2.5 * mean, 2 - 2.5 * mean]
    np.testing.assert_allclose(session.run(dense), moved)
    np.testing.assert_allclose(
        session.run(table), -2.5 * table_mean(size), rtol=1e-6
    )
    assert optimizer.get_slot_names() == ["momentum"]
    slot = optimizer.get_slot(dense, "momentum")
    np.testing.assert_allclose(session.run(slot), [1.5 * mean] * 2)
    assert len(optimizer.variables()) == 2
    # A saver would write the variables in collections.
    keys = tf.compat.v1.get_default_graph().get_all_collection_keys()
    assert not [key for key in keys if "tfring" in str(key)]


@pytest.mark.parametrize("average", [False, True])
def test_passes(session, average, rank, size):
    dense, _, loss = losses(rank)
    optimizer = tfring.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0),
        backward_passes_per_step=3,
        average_aggregated_gradients=average,
    )
    steps = v1.train.get_or_create_global_step()
    train = optimizer.minimize(loss, global_step=steps)
    session.run(v1.global_variables_initializer())
    session.run(v1.local_variables_initializer())
    values = []
    for _ in range(6):
        session.run(train)
        values.append(session.run(dense)[0])
    update = (size - 1) / 2 * (1 if average else 3)
    expected = [1, 1, *[1 - update] * 3, 1 - 2 * update]
    np.testing.assert_allclose(values, expected)
    assert session.run(steps) == 2


def test_sums_that_no_session_has_initialized(session):
    _, _, loss = losses(0)
    optimizer = tfring.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
    )
    train = optimizer.minimize(loss)
    assert {each.name for each in v1.local_variables()} == {
        "tfring/passes:0",
        "tfring/sum_of_dense:0",
        "tfring/sum_of_table:0",
    }
    session.run(v1.global_variables_initializer())
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"tfring/passes:0 has no value.*local_variables_initializer",
    ):
        session.run(train)
    session.run(v1.local_variables_initializer())
    session.run(train)


@pytest.mark.parametrize("passes", [1, 2])
def test_eagerly_and_in_a_function(passes, mode, rank, size):
    variable = tf.Variable([1.0])
    optimizer = tfring.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes
    )

    @mode
    def step():
        optimizer.minimize(lambda: variable * float(rank), var_list=[variable])

    mean = (size - 1) / 2
    for done in range(1, 5):
        step()
        applied = done - done % passes
        np.testing.assert_allclose(variable, [1 - applied * mean])


def test_monitored_session(rank, size):
    with tf.Graph().as_default():
        dense, _, loss = losses(rank)
        own = dense.assign_add([float(rank), 0.0])
        optimizer = tfring.DistributedOptimizer(v1.train.AdamOptimizer(0.1))
        train = optimizer.minimize(
            loss, global_step=v1.train.get_or_create_global_step()
        )
        hooks = [tfring.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(3):
                session.run(train)
            weights = session.run(dense)
        del own
    assert_same_on_all_ranks([weights])


def test_local_variables_are_left_alone(session, rank, size):
    dense, table, loss = losses(rank)
    optimizer = tfring.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), scale_local_gradients=False
    )
    optimizer.register_local_var(dense)
    train = optimizer.minimize(loss)
    session.run(v1.global_variables_initializer())
    session.run(train)
    np.testing.assert_allclose(session.run(dense), [1 - rank, 2 - rank])
    np.testing.assert_allclose(session.run(table), -table_mean(size), rtol=1e-6)


def test_a_loss_scale_around_it(session, rank, size):
    x = v1.get_variable("x", initializer=[1.0], use_resource=True)
    scaled = v1.train.experimental.MixedPrecisionLossScaleOptimizer(
        tfring.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)),
        8.0,
    )
    train = scaled.minimize(x * float(rank))
    session.run(v1.global_variables_initializer())
    session.run(train)
    np.testing.assert_allclose(session.run(x), [1 - (size - 1) / 2])


def test_refuses():
    plain = v1.train.GradientDescentOptimizer(1.0)
    distributed = tfring.DistributedOptimizer(plain)
    with pytest.raises(ValueError, match="distributed already"):
        tfring.DistributedOptimizer(distributed)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        tfring.DistributedOptimizer(plain, backward_passes_per_step=0)

"""Sharded parameters in one process: arguments, errors, memory of shares."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring._core import runtime
from tfring._memory.parameters import copied_range, parameters_of
from tfring._memory.sharding_ranks import ranks_of_hosts, sharding_ranks


def dense():
    layer = keras.layers.Dense(200)
    layer.build((1, 200))
    return layer


def test_needs_init(no_job):
    with pytest.raises(tfring.NotInitializedError), tfring.shard_parameters():
        pass


@pytest.mark.parametrize(
    "arguments",
    [{"min_elements": 0}, {"min_elements": 1.5}, {"group_bytes": True}],
)
def test_names_a_wrong_argument(initialized, arguments):
    [name] = arguments
    with (
        pytest.raises(ValueError, match=f"shard_parameters: {name} must be"),
        tfring.shard_parameters(**arguments),
    ):
        pass


def test_one_process_keeps_whole_parameters(initialized):
    with tfring.shard_parameters():
        layer = dense()
    assert type(layer.kernel) is keras.Variable
    assert not parameters_of(layer.variables)
    keras.optimizers.Adam().build(layer.trainable_variables)


def test_one_rank_of_an_elastic_job_shards(initialized, monkeypatch):
    """The ranks that join later get their shares of it."""
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    with tfring.shard_parameters():
        layer = dense()
    [share] = parameters_of(layer.variables)
    assert share.count == share.end == 200 * 200
    assert layer(tf.ones((2, 200))).shape == (2, 200)


def test_an_elastic_job_has_no_process_sets_to_share_within(
    initialized, monkeypatch
):
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    with (
        pytest.raises(NotImplementedError, match="pass within='host'"),
        tfring.shard_parameters(within=tfring.global_process_set),
    ):
        pass


def test_uneven_machines_share_out_together(initialized, monkeypatch, caplog):
    job = types.SimpleNamespace(nodes=lambda: [0, 0, 2])
    monkeypatch.setattr(runtime, "job", lambda: job)
    assert ranks_of_hosts().process_set is tfring.global_process_set
    assert "different numbers of ranks" in caplog.text


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        ([[0], [0], [2]], r"rank 1 passes within for the ranks \[0\]"),
        ([[0, 1], [1], [2]], r"rank 0 .* \[0, 1\], and rank 1 for \[1\]"),
        ([[0, 1], [0, 1], [2]], "equally many ranks"),
        ([[0], None, [2]], "rank 1 passes within for the ranks None"),
    ],
)
def test_names_sets_that_are_no_equal_parts(sets, text):
    with pytest.raises(ValueError, match=text):
        sharding_ranks(sets)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_other_ranks_have_other_shares(initialized, monkeypatch, jit_compile):
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    with tfring.shard_parameters():
        kernel = dense().kernel
    [share] = parameters_of([kernel])
    whole = share.stored.numpy().reshape(200, 200)

    @tf.function(jit_compile=jit_compile)
    def total():
        return tf.reduce_sum(kernel.value)

    total()
    monkeypatch.setattr(runtime, "rank", lambda: 2)
    monkeypatch.setattr(runtime, "size", lambda: 3)
    assert not kernel.is_for_these_ranks()
    kernel.cut_for_ranks(whole)
    assert kernel.is_for_these_ranks()
    [cut] = parameters_of([kernel])
    kernel.cut_for_ranks(whole)
    assert parameters_of([kernel]) == [cut]
    assert cut.group.shares == [cut]
    np.testing.assert_array_equal(
        cut.stored.numpy(), whole.ravel()[cut.begin :]
    )
    # A function that was traced for the earlier ranks would read wrong shares.
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="the ranks have changed since"
    ):
        total()


def test_a_share_does_not_keep_the_whole_alive():
    whole = tf.random.normal([1 << 23])

    def is_part_of_whole(tensor):
        return np.shares_memory(np.from_dlpack(whole), np.from_dlpack(tensor))

    # A slice of a tensor is a view, which keeps all of it in memory.
    assert is_part_of_whole(whole[: 1 << 22])
    share = copied_range(whole, 0, 1 << 22)
    assert not is_part_of_whole(share)
    np.testing.assert_array_equal(share, whole[: 1 << 22])

"""Every collective, of all ranks and of a part of them, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers import MODES, without_xla

import tfring


@pytest.fixture(params=["half", "world"])
def mine(request):
    """A set with this rank in it."""
    if request.param == "world":
        return tfring.global_process_set
    return request.getfixturevalue("halves")[tfring.rank() % 2]


@without_xla
def test_every_collective(mode, mine):
    n = mine.size()
    own = mine.rank()
    # Each tensor has one row more than the set has ranks.
    of_rank = [
        np.arange((n + 1) * 3.0).reshape(-1, 3) + 100 * r for r in mine.ranks
    ]
    total = sum(of_rank)
    own_rows = np.array_split(total, n)[own]
    splits = [2] + [1] * (n - 1)
    first_rows = [0, *np.cumsum(splits)]
    scaled = {"op": tfring.Sum, "prescale_factor": 2, "postscale_factor": 3}

    @mode
    def step(x):
        options = {"process_set": mine}
        tfring.barrier(mine)
        slices = tf.IndexedSlices(x[:1], [own], tf.constant([n, 3]))
        return {
            "average": tfring.allreduce(x, **options),
            "sum": tfring.allreduce(x, op=tfring.Sum, **options),
            "sparse": tf.convert_to_tensor(tfring.allreduce(slices, **options)),
            "group": tfring.grouped_allreduce([x, x], **options),
            "gathered": tfring.allgather(x[: own + 1], **options),
            "group_gathered": tfring.grouped_allgather([x, x[:1]], **options),
            "root": tfring.broadcast(x, mine.ranks[-1], **options),
            "scattered": tfring.reducescatter(x, **options),
            "scaled": tfring.reducescatter(x, **scaled, **options),
            "group_scattered": tfring.grouped_reducescatter(
                [x], op=tfring.Sum, **options
            ),
            "exchanged": list(tfring.alltoall(x, splits, **options)),
            "even": tfring.alltoall(x[:n], **options),
        }

    results = step(tf.constant(of_rank[own]))
    expected = {
        "average": total / n,
        "sum": total,
        "sparse": np.concatenate([x[:1] for x in of_rank]) / n,
        "group": [total / n] * 2,
        "gathered": np.concatenate([x[: i + 1] for i, x in enumerate(of_rank)]),
        "group_gathered": [
            np.concatenate(of_rank),
            np.concatenate([x[:1] for x in of_rank]),
        ],
        "root": of_rank[-1],
        "scattered": own_rows / n,
        "scaled": 6 * own_rows,
        "group_scattered": [own_rows],
        "exchanged": [
            np.concatenate(
                [x[first_rows[own] :][: splits[own]] for x in of_rank]
            ),
            [splits[own]] * n,
        ],
        "even": np.stack([x[own] for x in of_rank]),
    }
    for what, value in expected.items():
        result = results[what]
        if not isinstance(value, list):
            result, value = [result], [value]
        for one, correct in zip(result, value, strict=True):
            np.testing.assert_allclose(one, correct, err_msg=what)


def test_gradients_with_ops_and_factors(mode, mine):
    """Each against Note [Whose loss] in `_gradients`, of the set's ranks."""
    n = mine.size()
    weights = np.arange(1.0, n + 1)[:, np.newaxis]
    # The first rank has two of the n + 1 rows.
    splits = [2] + [1] * (n - 1)
    of_rows = np.repeat(weights, splits, axis=0)
    options = {"process_set": mine}
    scaled = {"op": tfring.Sum, "prescale_factor": 2, "postscale_factor": 3}
    expected = {
        lambda x: tfring.allreduce(x, **options): np.mean(weights),
        lambda x: tfring.allreduce(x, **scaled, **options): 6 * sum(weights),
        lambda x: tfring.grouped_allreduce([x, x], **scaled, **options)[1]: (
            6 * sum(weights)
        ),
        lambda x: tfring.broadcast(x, mine.ranks[-1], **options): (
            np.mean(weights) if mine.rank() == n - 1 else 0
        ),
        lambda x: tfring.allreduce(
            x, op=tfring.Sum, compression=tfring.Compression.fp16, **options
        ): sum(weights),
    }
    if mode is not MODES["xla"]:
        expected |= {
            lambda x: tfring.allgather(x, **options): np.mean(weights),
            # The loss depends on one of two tensors.
            lambda x: tfring.grouped_allgather(
                [x, tf.cast(x, tf.float32)], **options
            )[0]: np.mean(weights),
            lambda x: tfring.alltoall(x, splits, **options)[0]: of_rows,
            lambda x: tfring.reducescatter(x, **options): of_rows,
            lambda x: tfring.reducescatter(x, **scaled, **options): (
                6 * n * of_rows
            ),
            lambda x: tfring.grouped_reducescatter(
                [tf.cast(x, tf.float32), x], **scaled, **options
            )[1]: 6 * n * of_rows,
        }

    @mode
    def gradients(x):
        results = []
        for collective in expected:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(collective(x)) * weights[mine.rank(), 0]
            results.append(tape.gradient(loss, x))
        return results

    results = gradients(tf.ones([n + 1, 2], tf.float64))
    for i, (result, value) in enumerate(
        zip(results, expected.values(), strict=True)
    ):
        np.testing.assert_allclose(
            result,
            np.broadcast_to(value, [n + 1, 2]),
            err_msg=f"collective {i}",
        )


@without_xla
def test_variables(mode, mine, rank):
    variables = [tf.Variable(rank), tf.Variable([rank + 0.5])]

    def step():
        tfring.broadcast_variables(variables, mine.ranks[0], mine)
        first = variables[0] + 0
        variables[0].assign_add(rank)
        [value] = tfring.broadcast_(
            variables[:1], mine.ranks[-1], process_set=mine
        )
        return first, value

    first, value = mode(step)()
    assert first == mine.ranks[0]
    assert value == variables[0] == mine.ranks[0] + mine.ranks[-1]
    assert variables[1].numpy() == mine.ranks[0] + 0.5


def test_ranks_outside_of_it_are_refused(halves, rank):
    other, mine = halves[1 - rank % 2], halves[rank % 2]
    x = tf.ones([1])
    for call in [
        lambda: tfring.allreduce(x, process_set=other),
        lambda: tfring.grouped_allreduce([x], process_set=other),
        lambda: tfring.allgather(x, process_set=other),
        lambda: tfring.grouped_allgather([x], process_set=other),
        lambda: tfring.broadcast(x, other.ranks[0], process_set=other),
        lambda: tfring.reducescatter(x, process_set=other),
        lambda: tfring.grouped_reducescatter([x], process_set=other),
        lambda: tfring.alltoall(x, process_set=other),
        lambda: tfring.barrier(other),
        lambda: tfring.broadcast_variables([], other.ranks[0], other),
    ]:
        with pytest.raises(ValueError, match=rf"rank, {rank}, is not in"):
            call()
    with pytest.raises(ValueError, match=r"root_rank .* is not in"):
        tfring.broadcast(x, other.ranks[0], process_set=mine)
    with pytest.raises(TypeError, match="process_set must be"):
        tfring.allreduce(x, process_set=mine.ranks)
    # Nothing has counted.
    assert tfring.allreduce(x, op=tfring.Sum, process_set=mine) == mine.size()

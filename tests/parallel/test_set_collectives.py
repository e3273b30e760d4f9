"""Every collective within a process set, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfring

MODES = ["eager", "graph"]


@pytest.fixture(scope="module")
def halves():
    """The even ranks and the odd ones."""
    if tfring.size() < 2:
        pytest.skip("one rank has no halves")
    halves = [
        tfring.add_process_set(range(first, tfring.size(), 2))
        for first in range(2)
    ]
    yield halves
    for half in halves:
        tfring.remove_process_set(half)


def rows_of(rank, size):
    """Returns as many rows as a half has ranks, and one more."""
    count = (size + 1 - rank % 2) // 2 + 1
    return np.arange(count * 3.0).reshape(-1, 3) + 100 * rank


@pytest.mark.parametrize("mode", MODES)
def test_every_collective(mode, halves, rank, size):
    half = halves[rank % 2]
    ranks, mine, n = half.ranks, half.rank(), half.size()
    root = ranks[-1]
    of_rank = [rows_of(r, size) for r in ranks]
    total = sum(of_rank)
    own_rows = np.array_split(total, n)[mine]
    splits = [2] + [1] * (n - 1)
    first_rows = [0, *np.cumsum(splits)]

    def step(x):
        options = {"process_set": half}
        tfring.barrier(half)
        slices = tf.IndexedSlices(x[:1], [mine], tf.constant([n, 3]))
        return {
            "average": tfring.allreduce(x, **options),
            "sum": tfring.allreduce(x, op=tfring.Sum, **options),
            "sparse": tf.convert_to_tensor(tfring.allreduce(slices, **options)),
            "group": tfring.grouped_allreduce([x, x], **options),
            "gathered": tfring.allgather(x[: mine + 1], **options),
            "group_gathered": tfring.grouped_allgather([x, x[:1]], **options),
            "root": tfring.broadcast(x, root, **options),
            "scattered": tfring.reducescatter(x, **options),
            "group_scattered": tfring.grouped_reducescatter(
                [x], op=tfring.Sum, **options
            ),
            "exchanged": list(tfring.alltoall(x, splits, **options)),
            "even": tfring.alltoall(x[:n], **options),
        }

    function = step if mode == "eager" else tf.function(step)
    results = function(tf.constant(of_rank[mine]))
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
        "group_scattered": [own_rows],
        "exchanged": [
            np.concatenate(
                [x[first_rows[mine] :][: splits[mine]] for x in of_rank]
            ),
            [splits[mine]] * n,
        ],
        "even": np.stack([x[mine] for x in of_rank]),
    }
    for what, value in expected.items():
        result = results[what]
        if not isinstance(value, list):
            result, value = [result], [value]
        for one, correct in zip(result, value, strict=True):
            np.testing.assert_allclose(one, correct, err_msg=what)


@pytest.mark.parametrize("mode", [*MODES, "xla"])
def test_gradients_with_ops_and_factors(mode, halves, rank, size):
    """Each against Note [Whose loss] in `_gradients`, of the set's ranks."""
    half = halves[rank % 2]
    n = half.size()
    weights = np.arange(1.0, n + 1)[:, np.newaxis]
    options = {"process_set": half}
    scaled = {"op": tfring.Sum, "prescale_factor": 2, "postscale_factor": 3}
    expected = {
        lambda x: tfring.allreduce(x, **options): np.mean(weights),
        lambda x: tfring.allreduce(x, **scaled, **options): 6 * sum(weights),
        lambda x: tfring.grouped_allreduce([x, x], **scaled, **options)[1]: (
            6 * sum(weights)
        ),
        lambda x: tfring.broadcast(x, half.ranks[-1], **options): (
            np.mean(weights) if half.rank() == n - 1 else 0
        ),
    }
    if mode != "xla":
        expected |= {
            lambda x: tfring.allgather(x, **options): np.mean(weights),
            lambda x: tfring.grouped_allgather([x], **options)[0]: (
                np.mean(weights)
            ),
            lambda x: tfring.alltoall(x, **options): weights,
            lambda x: tfring.reducescatter(x, **options): weights,
            lambda x: tfring.reducescatter(x, **scaled, **options): (
                6 * n * weights
            ),
            lambda x: tfring.grouped_reducescatter([x], **scaled, **options)[
                0
            ]: 6 * n * weights,
        }

    def gradients(x):
        results = []
        for collective in expected:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(collective(x)) * weights[half.rank(), 0]
            results.append(tape.gradient(loss, x))
        return results

    if mode != "eager":
        gradients = tf.function(gradients, jit_compile=mode == "xla")
    results = gradients(tf.ones([n, 2], tf.float64))
    for i, (result, value) in enumerate(
        zip(results, expected.values(), strict=True)
    ):
        np.testing.assert_allclose(
            result, np.broadcast_to(value, [n, 2]), err_msg=f"collective {i}"
        )


@pytest.mark.parametrize("mode", MODES)
def test_variables(mode, halves, rank, size):
    half = halves[rank % 2]
    variables = [tf.Variable(rank), tf.Variable([rank + 0.5])]

    def step():
        tfring.broadcast_variables(variables, half.ranks[0], half)
        first = variables[0] + 0
        variables[0].assign_add(rank)
        [value] = tfring.broadcast_(
            variables[:1], half.ranks[-1], process_set=half
        )
        return first, value

    first, value = (step if mode == "eager" else tf.function(step))()
    assert first == half.ranks[0]
    assert value == variables[0] == half.ranks[0] + half.ranks[-1]
    assert variables[1].numpy() == half.ranks[0] + 0.5


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

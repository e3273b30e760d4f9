"""Collectives of parts of the ranks, at the same time."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

import tfring
from tfring._ops import chains


def allreduce(tensor, process_set, op=tfring.Sum, name=None):
    return tfring.allreduce(tensor, op=op, name=name, process_set=process_set)


def test_of_what_a_set_knows(halves, rank, size):
    even, odd = halves
    mine = halves[rank % 2]
    world = tfring.global_process_set
    assert world.process_set_id == 0
    assert world.ranks == list(range(size))
    assert (world.rank(), world.size()) == (rank, size)
    assert world.included()
    assert mine.included()
    assert mine.rank() == rank // 2
    assert mine.size() == len(mine.ranks)
    other = odd if mine is even else even
    assert not other.included()
    assert other.ranks == list(range(1 - rank % 2, size, 2))
    with pytest.raises(ValueError, match=f"rank {rank} is not in"):
        other.rank()
    ids = [even.process_set_id, odd.process_set_id]
    assert MPI.COMM_WORLD.allgather(ids) == [ids] * size
    assert 0 < ids[0] < ids[1]


def test_disjoint_and_overlapping_sets_at_the_same_time(
    mode, halves, sets, rank, size
):
    half = halves[rank % 2]
    [all_but_first] = sets(range(1, size)) if size > 2 else [None]

    def step(tensor):
        # The lengths and numbers of requests differ between ranks, except for
        # "b".
        results = [allreduce(tf.repeat(tensor, 1 + rank % 2), half, name="a")]
        if rank > 0 and all_but_first:
            results.append(allreduce(tensor, all_but_first, name="a"))
        results.append(allreduce(tensor, half, name="b", op=tfring.Average))
        return [
            *results,
            allreduce(tensor, tfring.global_process_set, name="a"),
        ]

    members = range(rank % 2, size, 2)
    expected = [[sum(members)] * (1 + rank % 2)]
    if rank > 0 and all_but_first:
        expected.append([sum(range(size))])
    expected += [[np.mean(members)], [sum(range(size))]]
    function = mode(step)
    for _ in range(3):
        results = function(tf.constant([float(rank)]))
        assert [r.numpy().tolist() for r in results] == expected


def test_nameless_collectives_count_in_their_set(halves, rank, size):
    half = halves[rank % 2]
    for _ in range(rank % 2 + 1):  # the odd ranks once more
        assert allreduce(1, half) == half.size()
    assert allreduce(1, tfring.global_process_set) == size


def test_a_mismatch_names_the_world_s_ranks_and_stays_in_the_set(
    mode, sets, rank, size
):
    if size < 3:
        pytest.skip("needs a set of two ranks that are not the first ones")
    [pair] = sets([size - 2, size - 1])
    length = 3 + (rank == size - 1)
    step = mode(lambda: allreduce(tf.ones([length]), pair, name="x"))
    if pair.included():
        with pytest.raises(tf.errors.FailedPreconditionError) as error:
            step()
        assert f"'x' (process set {pair.process_set_id})" in error.value.message
        assert f"ank {size - 2} sent" in error.value.message
        assert f"ank {size - 1} sent" in error.value.message
        assert allreduce(1, pair, name="x") == 2
    world = tfring.global_process_set
    assert allreduce(tf.ones([]), world, name="x") == size


def test_who_may_call_and_what(several_ranks, sets, rank):
    [first] = sets([0])
    if rank > 0:
        started = chains.start_allreduce(
            [tf.ones([1])],
            request_name="x",
            tensor_names=["x"],
            op=tfring.Sum,
            process_set=first,
        )
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            chains.finish(started)
        assert f"this rank, {rank}, is not in process set" in str(error.value)
        for kind in ValueError, tf.errors.InvalidArgumentError:
            with pytest.raises(kind, match="is not in ProcessSet"):
                tfring.allreduce(1, process_set=first)
    else:
        assert allreduce(7, first, name="x") == 7
        started = chains.start_broadcast(
            [tf.ones([1])],
            request_name="x",
            tensor_names=["x"],
            root_rank=1,
            process_set=first,
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank"):
            chains.finish(started)
    unknown = tfring.ProcessSet([0])
    with pytest.raises(ValueError, match="never added"):
        unknown.size()
    for kind in ValueError, tf.errors.InvalidArgumentError:
        with pytest.raises(kind, match=r"allreduce.*never added"):
            tfring.allreduce(1, process_set=unknown)


def test_removed_sets_are_not_used(halves, rank, size):
    even, odd = halves
    mine = halves[rank % 2]

    @tf.function
    def traced():
        return allreduce(tf.ones([1]), mine, name="x")

    traced()
    old_id = mine.process_set_id
    assert tfring.remove_process_set(even)
    assert tfring.remove_process_set(odd)
    assert not tfring.remove_process_set(odd)
    assert not tfring.remove_process_set(tfring.global_process_set)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="has been removed"
    ):
        traced()
    for call in (mine.size, mine.included):
        with pytest.raises(ValueError, match="it was removed"):
            call()
    # A set that is added again is a new one, with a higher number.
    tfring.add_process_set(even)
    tfring.add_process_set(odd)
    assert mine.process_set_id > old_id
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="has been removed"
    ):
        traced()


def test_disagreements_reach_every_rank(sets, rank, size):
    with pytest.raises(ValueError, match=r"rank 9999, and the job has only"):
        tfring.add_process_set([0, 9999])
    everybody = list(range(size))
    with pytest.raises(ValueError, match="already, ProcessSet"):
        tfring.add_process_set(everybody[::-1])
    if size == 1:
        return
    with pytest.raises(
        ValueError, match=r"0 passed \[0\]; rank 1 passed \[1\]"
    ):
        tfring.add_process_set([int(rank == 1)])
    [first, second] = sets([0], [1])
    with pytest.raises(ValueError, match="already, ProcessSet"):
        tfring.add_process_set([1])
    with pytest.raises(ValueError, match="already, ProcessSet"):
        tfring.add_process_set(first)
    with pytest.raises(ValueError, match="passed different sets"):
        tfring.remove_process_set(
            first if rank == 0 else tfring.ProcessSet([0])
        )
    change = tfring.remove_process_set if rank else tfring.add_process_set
    with pytest.raises(tf.errors.FailedPreconditionError, match="add_process"):
        change(second)
    assert first.ranks == [0]
    assert second.ranks == [1]


def test_parts_of_a_communicator(several_ranks, size):
    world = MPI.COMM_WORLD
    part = world.Split(world.rank % 2, -world.rank)
    mine = tfring.add_process_set(tfring.ProcessSet(part))
    members = list(range(world.rank % 2, size, 2))
    assert mine.ranks == members
    ids = world.allgather(mine.process_set_id)
    assert ids == [ids[0] + r % 2 for r in range(size)]
    assert allreduce(tf.constant(world.rank), mine, name="x") == sum(members)
    assert tfring.remove_process_set(mine)
    part.Free()


@pytest.mark.parametrize(
    ("error", "ranks"),
    [
        (TypeError, 3),
        (TypeError, [0.0]),
        (TypeError, [True]),
        (TypeError, MPI.COMM_NULL),
        (ValueError, []),
        (ValueError, [0, 0]),
        (ValueError, [-1]),
    ],
)
def test_bad_ranks(error, ranks):
    with pytest.raises(error, match="ProcessSet"):
        tfring.ProcessSet(ranks)


def test_sets_from_the_start_end_with_the_job(rank, size):
    world = MPI.COMM_WORLD
    static = [tfring.ProcessSet([0])] if size > 1 else []
    world.Barrier()
    tfring.shutdown()
    with pytest.raises(ValueError, match="init"):
        tfring.global_process_set.size()
    try:
        tfring.init(process_sets=static)
        for process_set in static:
            assert process_set.included() == (rank == 0)
        world.Barrier()
        tfring.shutdown()
        assert all(s.process_set_id is None for s in static)
        with pytest.raises(ValueError, match="dynamic"):
            tfring.init(process_sets="static")
        if size > 1:
            with pytest.raises(ValueError, match="already"):
                tfring.init(process_sets=[[0], [0]])
            assert not tfring.is_initialized()
        if rank == 0:
            tfring.init([0], "dynamic")
            assert tfring.size() == 1
            tfring.shutdown()
        else:
            with pytest.raises(ValueError, match="is not in comm="):
                tfring.init([0])
    finally:
        world.Barrier()
        with contextlib.suppress(Exception):
            tfring.shutdown()
        tfring.init()
    assert allreduce(1, tfring.global_process_set, name="x") == size

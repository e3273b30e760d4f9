"""The ranks and sizes of the job."""

from __future__ import annotations

import socket

from mpi4py import MPI

import tfring


def test_ranks_are_those_of_the_world() -> None:
    world = MPI.COMM_WORLD
    assert tfring.is_initialized()
    assert (tfring.rank(), tfring.size()) == (world.rank, world.size)


def test_local_and_cross_ranks() -> None:
    world = MPI.COMM_WORLD
    host = socket.gethostname()
    where = world.allgather((host, tfring.local_rank()))
    here = [local_rank for name, local_rank in where if name == host]
    assert sorted(here) == list(range(tfring.local_size()))
    alike = [name for name, local in where if local == tfring.local_rank()]
    assert tfring.cross_size() == len(alike)
    assert 0 <= tfring.cross_rank() < tfring.cross_size()


def test_engine_of_part_of_the_ranks_and_back() -> None:
    world = MPI.COMM_WORLD
    part = world.Split(world.rank % 2, world.rank)
    world.Barrier()
    tfring.shutdown()
    assert not tfring.is_initialized()
    tfring.init(part)
    try:
        assert (tfring.rank(), tfring.size()) == (part.rank, part.size)
        total = tfring.allreduce([float(world.rank)], op=tfring.Sum)
        members = range(world.rank % 2, world.size, 2)
        assert total.numpy().tolist() == [sum(members)]
    finally:
        part.Barrier()
        tfring.shutdown()
        tfring.init()
    part.Free()
    # The name of this call comes from a count that starts at 0 with each
    # engine.
    total = tfring.allreduce([1.0], op=tfring.Sum)
    assert total.numpy().tolist() == [world.size]

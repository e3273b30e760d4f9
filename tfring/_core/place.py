"""Ranks and sizes, as the user's script sees them.

Note [A place to come]: a new worker of an elastic job builds alone while the
members train. Its collectives reach nobody else. Its script is told the rank
and the size that it will have once all starting workers have joined, so a
learning rate by the size is the members' learning rate. If ranks are lost
meanwhile, its place changes by a new start, as the place of every rank does.
"""

from __future__ import annotations

from tfring._core import runtime


def rank() -> int:
    """This process's number in the job, from 0 to `size() - 1`.

    In an elastic job it may change at a new start. Before a worker has joined
    the others, it is the rank that the worker will have.
    """
    return runtime.place().rank


def size() -> int:
    """The number of processes in the job; see `rank`."""
    return runtime.place().size


def local_rank() -> int:
    """This process's number on its machine: which GPU it takes."""
    return runtime.place().local_rank


def local_size() -> int:
    """The number of the job's processes on this machine."""
    return runtime.place().local_size


def cross_rank() -> int:
    """This machine's number among the machines with this `local_rank`."""
    return runtime.place().cross_rank


def cross_size() -> int:
    """The number of machines that have a process with this `local_rank`."""
    return runtime.place().cross_size

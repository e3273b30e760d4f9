"""Who is who in the job, as a script asks.

Note [A place to come]: a worker of an elastic job that is started while others
train builds alone until it joins them, and collectives are its own meanwhile.
To a script that asks, it answers with the place that it has once all workers
that are starting have joined: what a script derives from the rank or the size
is then that of the others. Where it gets another place in the end, as ranks
have been lost meanwhile, it hears of that as all ranks do, by a new start.
"""

from __future__ import annotations

from tfring._core import runtime


def rank() -> int:
    """This process's number in the job, from 0 to `size() - 1`.

    In an elastic job it is another after a new start; before a worker has
    joined the others, the one that it will have.
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
    """This machine's number among those that have this `local_rank`."""
    return runtime.place().cross_rank


def cross_size() -> int:
    """The number of machines that have a process with this `local_rank`."""
    return runtime.place().cross_size

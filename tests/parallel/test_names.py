"""The same name twice at the same time is an error on this rank, not a hang."""

from __future__ import annotations

import concurrent.futures
import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

import tfring
from tfring._ops import chains

CALLS = {
    "allreduce": lambda rank: tfring.allreduce(
        rank, op=tfring.Sum, name="twice"
    ),
    "allgather": lambda rank: tfring.allgather([rank], name="twice"),
    "alltoall": lambda rank: tfring.alltoall(
        [rank] * tfring.size(), name="twice"
    ),
    "barrier": lambda _: tfring.barrier(name="twice"),
    "broadcast": lambda rank: tfring.broadcast(rank, 0, name="twice"),
    "broadcast_object": lambda rank: tfring.broadcast_object(
        rank, name="twice"
    ),
    "reducescatter": lambda rank: tfring.reducescatter(
        [rank] * tfring.size(), op=tfring.Sum, name="twice"
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_two_threads(what, rank, several_ranks, size):
    """The second call fails while the first one still waits for its peers."""
    if what == "broadcast_object" and "TFRING_TEST_DEVICE" in os.environ:
        # Its integers of 64 bits are on the GPU.
        pytest.skip("there TensorFlow fails both calls: see docs/limits.md")

    def call():
        return CALLS[what](rank)

    if rank == 0:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            calls = {pool.submit(call), pool.submit(call)}
            refused, waiting = concurrent.futures.wait(
                calls,
                timeout=60,
                return_when=concurrent.futures.FIRST_COMPLETED,
            )
            # The remaining ranks start now, so that no thread is left waiting.
            MPI.COMM_WORLD.Barrier()
            assert len(refused) == len(waiting) == 1
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=r"'twice.*in flight.* its own name=",
            ):
                refused.pop().result()
            result = waiting.pop().result(60)
    else:
        MPI.COMM_WORLD.Barrier()
        result = call()
    if what == "allreduce":
        assert result == sum(range(size))
    elif what == "broadcast_object":
        assert result == 0


def test_one_chain(mode, rank, size):
    """The first use of the name may end before the second one starts."""

    @mode
    def step():
        started = None
        in_flight = []
        for i, name in enumerate(["before", "same", "same", "behind"]):
            started = chains.start_allreduce(
                [tf.fill([3], i + 1.0)],
                request_name=f"one_chain/{name}",
                tensor_names=[name],
                previous=started,
                op=tfring.Sum,
                last=name == "behind",
            )
            in_flight.append(started)
        return [chains.finish(started)[0] for started in in_flight]

    for _ in range(20):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="'one_chain/same'"
        ):
            step()
    # The job continues, and may use the name again.
    for name in "before", "same", "behind":
        result = tfring.allreduce(1, op=tfring.Sum, name=f"one_chain/{name}")
        assert result == size


@pytest.mark.parametrize("explicit", [True, False])
def test_one_graph_of_tensorflow_1(explicit, session, rank, size):
    """There a name is made unique, as TensorFlow does with operations."""
    name = "same" if explicit else None
    results = [
        tfring.allreduce(tf.constant(i), op=tfring.Sum, name=name)
        for i in range(20)
    ]
    np.testing.assert_array_equal(session.run(results), np.arange(20) * size)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_automatic_names_know_no_scopes(jit_compile, rank, size):
    """In a Keras layer they would: its number is this process's alone."""

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tf.name_scope(f"layer_{rank}"):
                y = tfring.allreduce(x, op=tfring.Sum)
                z = tfring.grouped_allreduce([y, y], op=tfring.Sum)
            loss = tf.add_n(z)
        return loss, tape.gradient(loss, x)

    loss, gradient = step(tf.constant(1.0))
    assert loss == gradient == 2 * size**2


def test_two_sessions_run_one_graph(session, rank, several_ranks, size):
    total = tfring.allreduce(tf.constant(1), op=tfring.Sum, name="shared")
    if rank == 0:
        outcomes = []
        failed = threading.Event()

        def run():
            try:
                outcomes.append(session.run(total))
            except tf.errors.InvalidArgumentError:
                failed.set()

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert failed.wait(60)
        MPI.COMM_WORLD.Barrier()
        for thread in threads:
            thread.join()
        assert outcomes == [size]
    else:
        MPI.COMM_WORLD.Barrier()
        assert session.run(total) == size


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_one_after_the_other_is_no_mistake(mode, size):
    @tf.function(jit_compile=mode == "xla")
    def step(x):
        for _ in range(3):
            x = tfring.allreduce(x, op=tfring.Sum, name="again")
        return x

    assert step(tf.constant(1)) == size**3

"""`tfring.ray.RayExecutor` on a cluster of two raylets, with 1 and 2 CPUs."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import functions
import numpy as np
import pytest
from conftest import SECONDS, wait_for

import tfring.ray


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    made.add_node(num_cpus=2)
    ray.init(address=made.address, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def start(cluster):
    """Returns a function that makes an executor, and starts it."""
    made = []

    def start(ranks, **options):
        executor = tfring.ray.RayExecutor(ranks, **options)
        made.append(executor)
        executor.start()
        return executor

    yield start
    for executor in made:
        executor.shutdown()
    # The next job of the cluster is as good as the first.
    executor = tfring.ray.RayExecutor(2)
    executor.start()
    assert executor.run(lambda: 5) == [5, 5]
    executor.shutdown()


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_training_is_that_of_one_process(start, alone, ranks):
    executor = start(ranks)
    # The second is in the same processes.
    for found in (executor.run(functions.train) for _ in range(2)):
        assert [numbers for numbers, _ in found] == [
            (rank, ranks, ranks) for rank in range(ranks)
        ]
        for _, weights in found:
            for own, expected in zip(weights, alone, strict=True):
                np.testing.assert_allclose(own, expected, atol=1e-6)


def test_an_object_on_each_rank(cluster):
    executor = tfring.ray.RayExecutor(3)
    executor.start(dict, executable_kwargs={"start": 5})
    try:
        assert executor.execute(lambda found: found["start"]) == [5] * 3
        assert executor.execute_single(len) == 1
    finally:
        executor.shutdown()


def test_a_closure_with_arguments(start):
    offset = 10

    def work(factor, *, more):
        import tfring

        tfring.init()
        return tfring.rank() * factor + offset + more

    assert start(3).run(work, [2], {"more": 1}) == [11, 13, 15]


def test_a_program_of_horovods(cluster, horovods_name):
    from horovod.ray import RayExecutor

    def work():
        import horovod.tensorflow.keras as hvd

        hvd.init()
        return hvd.rank(), hvd.__name__

    expected = [(rank, "horovod.tensorflow.keras") for rank in range(2)]
    for settings in ([], [RayExecutor.create_settings(timeout_s=30)]):
        executor = RayExecutor(*settings, num_workers=2, use_gpu=False)
        executor.start()
        assert executor.run(work) == expected
        executor.shutdown()


def test_a_rank_that_raises(start):
    executor = start(2)
    with pytest.raises(KeyError, match="no such column: rank 1") as caught:
        executor.run(functions.raise_on, [1])
    assert "in raise_on" in str(caught.value)
    with pytest.raises(RuntimeError, match="the job of these ranks has ended"):
        executor.run(functions.raise_on, [1])


@pytest.mark.parametrize("function", [functions.sleep, functions.reduce])
def test_an_actor_that_is_killed(start, tmp_path, pids, function):
    executor = start(2)
    thread = threading.Thread(
        target=lambda: os.kill(pids(2)[1], signal.SIGKILL)
    )
    thread.start()
    with pytest.raises(RuntimeError, match=r"tfring\.ray: rank 1 \(host "):
        executor.run(function, [str(tmp_path)])
    thread.join()


def test_a_node_that_is_removed(cluster, start, tmp_path, pids):
    node = cluster.add_node(num_cpus=1)
    executor = start(4)
    errors = []

    def run():
        try:
            executor.run(functions.reduce, [str(tmp_path)])
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    pids(4)
    # Nodes are removed in the main thread alone.
    cluster.remove_node(node)
    thread.join(SECONDS)
    [error] = errors
    assert re.match(r"tfring\.ray: rank \d \(host ", error), error


def test_a_job_that_is_cancelled(start, tmp_path, pids):
    executor = start(2)
    executor.run_remote(functions.reduce, [str(tmp_path)])
    ranks = pids(2)
    executor.shutdown()
    folders = [Path(f"/proc/{pid}") for pid in ranks.values()]
    wait_for(lambda: not any(folder.exists() for folder in folders))


def test_an_interrupt(cluster, tmp_path, pids):
    script = """
import sys, functions, ray, tfring.ray
ray.init(address=sys.argv[2], logging_level="ERROR")
executor = tfring.ray.RayExecutor(2)
executor.start()
try:
    executor.run(functions.reduce, [sys.argv[1]])
except KeyboardInterrupt:
    executor.shutdown()
    executor.start()
    print("interrupted; then", executor.run(lambda: 5))
    executor.shutdown()
"""
    program = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path, cluster.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    ranks = pids(2)
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=SECONDS)
    assert "interrupted; then [5, 5]" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())


def test_no_room(cluster):
    executor = tfring.ray.RayExecutor(4, start_timeout=2.0)
    with pytest.raises(TimeoutError, match="no room for 4 workers"):
        executor.start()


def test_an_elastic_job_goes_on_without_an_actor(start, tmp_path, pids):
    executor = start(3, min_workers=1)
    thread = threading.Thread(
        target=lambda: os.kill(pids(3)[1], signal.SIGKILL)
    )
    thread.start()
    found = executor.run(functions.train_elastically, [str(tmp_path), 100])
    thread.join(SECONDS)
    assert len(found) == 3
    for steps, total, sizes in found:
        assert total == steps >= 100
        assert (sizes[0], sizes[-1]) == (3, 3)
        assert 2 in sizes


@pytest.fixture
def only_two_places(cluster):
    """Takes one of the cluster's three CPUs."""
    import ray

    class Blocker:
        pass

    blocker = ray.remote(Blocker).options(num_cpus=1).remote()
    yield
    ray.kill(blocker)


def test_nodes_come_and_go(cluster, only_two_places, start, tmp_path, pids):
    executor = start(2, min_workers=1, max_workers=3)
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(
            executor.run(functions.train_elastically, [str(tmp_path), 100])
        )
    )
    thread.start()
    pids(2)
    # Nodes are added in the main thread alone.
    node = cluster.add_node(num_cpus=1)
    pids(3)
    cluster.remove_node(node)
    node = cluster.add_node(num_cpus=1)
    thread.join(SECONDS)
    assert not thread.is_alive()
    cluster.remove_node(node)
    assert len(found) == 3
    for steps, total, sizes in found:
        assert total == steps >= 100
        assert (sizes[:2], sizes[-2:]) == ([2, 3], [2, 3])

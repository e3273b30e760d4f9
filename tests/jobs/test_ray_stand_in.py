"""`tfring.ray.RayExecutor` on a stand-in for Ray; the seam is the real one."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import fake_ray
import pytest
from jobs import wait_until

import tfring.ray
from tfring.launcher.launcher_process import Outcome


@pytest.fixture
def ray(monkeypatch):
    found = fake_ray.install(monkeypatch, cpus=4)
    yield found
    for actor in found.actors:
        actor.kill()


@pytest.fixture
def executor(ray):
    """Two ranks that have started."""
    made = tfring.ray.RayExecutor(2, cpus_per_worker=2, gpus_per_worker=1)
    made.start(extra_env_vars={"ASKED": "yes"})
    yield made
    made.shutdown()
    assert ray.groups == []
    assert ray.actors == []


def worker():
    return os.environ["TFRING_ELASTIC_WORKER"]


def test_functions_run_in_the_same_processes(ray, executor):
    def work(factor, *, more):
        return worker(), os.getpid(), os.environ["ASKED"], factor + more

    first = executor.run(work, [10], {"more": 1})
    assert [(name, *rest) for name, _, *rest in first] == [
        ("w1", "yes", 11),
        ("w2", "yes", 11),
    ]
    assert executor.run(work, [10], {"more": 1}) == first
    assert ray.get(executor.run_remote(worker)) == ["w1", "w2"]
    assert ray.options == [(2, 1, 0)] * 2


def test_the_first_failure_is_raised(executor):
    def work():
        if worker() == "w2":
            raise LookupError("no such column")
        signal.pause()

    # The error is the function's own, and not that the other actor has died.
    with pytest.raises(LookupError, match="no such column"):
        executor.run(work)
    with pytest.raises(RuntimeError, match="the job of these ranks has ended"):
        executor.run(work)
    executor.shutdown()
    executor.start()
    assert executor.run(worker) == ["w1", "w2"]


def load_data():
    if worker() == "w2":
        raise FileNotFoundError("data.npy")


class Data:
    def __reduce__(self):
        return load_data, ()


def test_an_argument_that_a_rank_cannot_load_ends_the_job(
    executor, monkeypatch
):
    # The launcher does not learn of the error, so the wait for its outcome is
    # cut.
    monkeypatch.setattr("tfring.ray.executor._OUTCOME_SECONDS", 0.5)
    with pytest.raises(FileNotFoundError, match=r"data\.npy"):
        executor.run(lambda data: signal.pause(), [Data()])
    with pytest.raises(RuntimeError, match="the job of these ranks has ended"):
        executor.run(worker)


def test_a_killed_actor_is_named(executor):
    def work():
        if worker() == "w1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    with pytest.raises(RuntimeError, match=r"tfring.ray: rank 0 \(host "):
        executor.run(work)


def test_an_interrupt_ends_the_ranks(executor, tmp_path):
    def work(path):
        Path(path, worker()).touch()
        signal.pause()

    def interrupt():
        wait_until(lambda: len([*tmp_path.iterdir()]) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        executor.run(work, [str(tmp_path)])
    with pytest.raises(RuntimeError, match="the job of these ranks has ended"):
        executor.run(worker)


def test_a_killed_rank_is_reported_and_not_who_missed_it(ray):
    executor = tfring.ray.RayExecutor(2)
    executor._job = Future()
    executor._job.set_result(
        Outcome(
            "tfring.ray", 1, {"w1": 1, "w2": 0}, "w1", "rank 1 failed first."
        )
    )
    died, missed = fake_ray.Reference(), fake_ray.Reference()
    died.future().set_exception(fake_ray.RayActorError("The actor died."))
    error = fake_ray.RayTaskError(RuntimeError("rank 1 is lost"))
    missed.future().set_exception(error)
    with pytest.raises(RuntimeError, match=r"^tfring\.ray: rank 1 failed"):
        executor._get([missed, died])


class Counter:
    def __init__(self, start, step):
        self.count, self.step = start, step


def test_an_object_on_each_rank(ray):
    executor = tfring.ray.RayExecutor(2)
    executor.start(Counter, [5], {"step": 2})

    def count(counter):
        counter.count += counter.step
        return worker(), counter.count

    assert executor.execute(count) == [("w1", 7), ("w2", 7)]
    assert executor.execute_single(count) == ("w1", 9)
    with pytest.raises(RuntimeError, match="Call shutdown first"):
        executor.start()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="call start first"):
        executor.execute(count)


def test_the_placement_group_that_this_process_is_in(ray):
    ray.current_group = fake_ray.Group([{"CPU": 1}] * 2, has_room=True)
    executor = tfring.ray.RayExecutor(2)
    executor.start()
    assert ray.groups == []
    assert executor.run(worker) == ["w1", "w2"]
    executor.shutdown()


def test_no_room(ray):
    executor = tfring.ray.RayExecutor(5, start_timeout=3.0)
    with pytest.raises(TimeoutError, match="after 3 s the cluster has no room"):
        executor.start()
    assert ray.groups == []


def test_what_is_refused(ray, monkeypatch):
    for arguments, words in (
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"num_workers": None}, "num_workers must be at least 1, got None"),
        (
            {"num_workers": 2, "min_workers": 3},
            "min_workers must be from 1 to num_workers=2, got 3",
        ),
        (
            {"num_workers": 2, "min_workers": 1, "max_workers": 1},
            "max_workers must be at least num_workers=2, got 1",
        ),
        (
            {"num_workers": 2, "max_workers": 3},
            "max_workers is for an elastic job. Pass min_workers",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            tfring.ray.RayExecutor(**arguments)
    elastic = tfring.ray.RayExecutor(2, min_workers=1)
    for call in (
        lambda: elastic.start(Counter),
        lambda: elastic.run_remote(worker),
        lambda: elastic.execute(worker),
        lambda: elastic.execute_single(worker),
    ):
        with pytest.raises(ValueError, match="is for ranks that do not change"):
            call()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'tfring\[ray\]'"):
        tfring.ray.RayExecutor(2)

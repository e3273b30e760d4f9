"""`tfring.spark.run` in a session with three executors of one core."""

import os
import signal
import socket
import threading
from pathlib import Path

import functions
import numpy as np
import pytest
from conftest import SECONDS

import tfring.spark


@pytest.fixture(scope="module")
def context():
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local-cluster[3,1,1024]")
        .config("spark.ui.enabled", "false")
        # A lost executor is replaced at once.
        .config("spark.task.maxFailures", "8")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session.sparkContext
    session.stop()


@pytest.fixture(autouse=True)
def _the_session_goes_on(context):
    """The next job of the session is as good as the first."""
    yield
    assert tfring.spark.run(lambda: 5, num_proc=2) == [5, 5]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_training_is_that_of_one_process(alone, ranks):
    found = tfring.spark.run(functions.train, num_proc=ranks)
    assert [numbers for numbers, _ in found] == [
        (rank, ranks, ranks) for rank in range(ranks)
    ]
    for _, weights in found:
        for own, expected in zip(weights, alone, strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-6)


def test_a_closure_with_arguments(capfd):
    offset = 10

    def work(factor, *, more):
        worker = os.environ["TFRING_ELASTIC_WORKER"]
        for step in range(3):  # a progress bar
            print(end=f"\r{step}/2")
        print("\rhere is", worker, os.environ["SHOWN"])
        return int(worker[1:]) * factor + offset + more

    found = tfring.spark.run(
        work, (2,), {"more": 1}, num_proc=3, env={"SHOWN": "yes"}
    )
    assert found == [13, 15, 17]
    lines = capfd.readouterr().out.splitlines()
    host = socket.gethostname()
    assert {f"[{n} {host}] here is w{n + 1} yes" for n in range(3)} <= {*lines}


def test_programs_of_horovods(horovods_name):
    import horovod.spark

    def work():
        import horovod.tensorflow.keras as hvd

        hvd.init()
        return hvd.rank(), hvd.__name__

    expected = [(rank, "horovod.tensorflow.keras") for rank in range(2)]
    assert horovod.spark.run(work, num_proc=2, use_gloo=True) == expected
    found = horovod.spark.run_elastic(work, num_proc=2, min_num_proc=1)
    assert found == expected


def test_a_rank_that_raises():
    with pytest.raises(KeyError, match="no such column: rank 1") as caught:
        tfring.spark.run(functions.raise_on, (1,), num_proc=2)
    assert "in raise_on" in str(caught.value.__cause__)


def start(*arguments, **options):
    """Runs a job in a thread; returns the thread, and where its error is.

    The Spark job has the tag `ours`.
    """
    errors = []

    def run():
        from pyspark import SparkContext

        SparkContext._active_spark_context.addJobTag("ours")
        try:
            tfring.spark.run(*arguments, **options)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def ended(thread, errors):
    thread.join(SECONDS)
    assert not thread.is_alive()
    [error] = errors
    return error


def test_a_rank_that_is_killed(tmp_path, pids):
    job = start(functions.sleep, (str(tmp_path),), num_proc=2)
    os.kill(pids(2)[1], signal.SIGKILL)
    error = ended(*job)
    assert isinstance(error, RuntimeError)
    assert "rank 1 (host" in str(error)
    assert "failed first: killed by SIGKILL" in str(error)


def executor_of(pid):
    """Returns the JVM above a process."""
    while b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid


def test_an_executor_that_is_killed(tmp_path, pids):
    job = start(functions.sleep, (str(tmp_path),), num_proc=2)
    os.kill(executor_of(pids(2)[1]), signal.SIGKILL)
    assert "rank 1 (host" in str(ended(*job))


def test_a_job_that_is_cancelled(context, tmp_path, pids):
    job = start(functions.sleep, (str(tmp_path),), num_proc=2)
    pids(2)
    context.cancelJobsWithTag("ours")
    assert "the Spark job was cancelled" in str(ended(*job))


def test_too_few_slots():
    with pytest.raises(RuntimeError, match=r"have 3 slots .*start_timeout"):
        tfring.spark.run(functions.sleep, num_proc=4, start_timeout=1.0)


def test_an_elastic_job_goes_on_without_an_executor(tmp_path, pids):
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(
            tfring.spark.run(
                functions.train_elastically,
                (str(tmp_path), 100),
                num_proc=2,
                min_num_proc=1,
                max_num_proc=3,
            )
        )
    )
    thread.start()
    os.kill(executor_of(pids(3)[1]), signal.SIGKILL)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert len(found) == 3
    for steps, total, sizes in found:
        assert total == steps >= 100
        assert sizes[-3:] == [3, 2, 3]

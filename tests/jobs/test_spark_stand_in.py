"""`tfring.spark.run` on a stand-in for Spark; the seam is the real one."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import fake_spark
import pytest
from jobs import wait_until

import tfring.spark
from tfring.launcher.hosts import cpus_of_slot


@pytest.fixture
def session(monkeypatch):
    """Returns a function that makes the active session."""

    def make(slots=2, **conf):
        context = fake_spark.Context(slots, **conf)
        fake_spark.install(monkeypatch, context)
        return context

    return make


def test_results_by_rank_and_the_share_of_a_task(session, capfd, monkeypatch):
    for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    session(2, **{"spark.task.cpus": "3", "gpus": ["4", "5"]})

    def work(factor, *, more):
        print("of", os.environ["TFRING_ELASTIC_WORKER"], flush=True)
        number = int(os.environ["TFRING_ELASTIC_WORKER"][1:])
        names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
        names += ("CUDA_VISIBLE_DEVICES", "ASKED")
        shown = [os.environ[name] for name in names]
        return number * factor + more, shown, os.sched_getaffinity(0)

    found = tfring.spark.run(work, (10,), {"more": 1}, env={"ASKED": "yes"})
    shown = ["3", "3", "4,5", "yes"]
    assert found == [
        (11, shown, cpus_of_slot(0, 2, 3)),
        (21, shown, cpus_of_slot(1, 2, 3)),
    ]
    out = capfd.readouterr().out.splitlines()
    host = socket.gethostname()
    assert {f"[0 {host}] of w1", f"[1 {host}] of w2"} <= {*out}


def test_an_exception_travels_as_a_result(session):
    session()

    def work():
        if os.environ["TFRING_ELASTIC_WORKER"] == "w2":
            raise LookupError("no such column")
        signal.pause()

    with pytest.raises(LookupError, match="no such column") as caught:
        tfring.spark.run(work, num_proc=2)
    assert str(caught.value.__cause__).startswith("\nRank 1:\nTraceback")


def test_a_cancelled_job_ends_its_ranks(session, tmp_path):
    context = session()

    def work(path):
        Path(path, str(os.getpid())).touch()
        signal.pause()

    def cancel():
        wait_until(lambda: len([*tmp_path.iterdir()]) == 2)
        context.cancel_all()

    threading.Thread(target=cancel).start()
    with pytest.raises(RuntimeError, match="the Spark job was cancelled"):
        tfring.spark.run(work, (str(tmp_path),), num_proc=2)


@pytest.mark.parametrize(
    "words",
    [
        "ModuleNotFoundError: No module named 'tfring'",
        "Python in worker has different version: 3.9 than that in driver",
    ],
)
def test_another_python_on_the_executors(session, monkeypatch, words):
    session()

    def fail(*_, **__):
        raise RuntimeError(words)

    monkeypatch.setattr("tfring.spark.cluster.environment_of", fail)
    with pytest.raises(RuntimeError, match="executors' Python is python3") as e:
        tfring.spark.run(len, num_proc=2)
    assert sys.executable in str(e.value)
    assert "\n" not in str(e.value)


def test_what_is_refused(session, monkeypatch):
    session(2, **{"spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(ValueError, match=r"dynamicAllocation.* min_num_proc"):
        tfring.spark.run(len)
    session(2)
    with pytest.raises(RuntimeError, match=r"num_proc=3, .* have 2 slots"):
        tfring.spark.run(len, num_proc=3, start_timeout=0.0)
    with pytest.raises(ValueError, match="min_num_proc must be from 1 to"):
        tfring.spark.run(len, num_proc=2, min_num_proc=3)
    with pytest.raises(ValueError, match=r"max_num_proc .* num_proc=2, got 1"):
        tfring.spark.run(len, num_proc=2, min_num_proc=1, max_num_proc=1)
    with pytest.raises(ValueError, match="num_proc must be at least 1"):
        tfring.spark.run(len, num_proc=-1)
    with pytest.raises(TypeError, match="fn must be a function, got int"):
        tfring.spark.run(3)
    fake_spark.install(monkeypatch, None)
    with pytest.raises(RuntimeError, match="no active SparkContext"):
        tfring.spark.run(len)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(RuntimeError, match=r"pip install 'tfring\[spark\]'"):
        tfring.spark.run(len)


def test_whoever_reads_the_traffic_can_join(session, caplog):
    session()
    tfring.spark.run(int, num_proc=1)
    assert "spark.authenticate is not set" in caplog.text
    caplog.clear()
    session(2, **{"spark.authenticate": "true"})
    tfring.spark.run(int, num_proc=1)
    assert caplog.text == ""


def test_the_line_of_an_error_of_spark(session, monkeypatch):
    session()

    def fail(*_, **__):
        raise RuntimeError(
            "An error occurred while calling z:org.Rdd.collect.\n"
            ": org.SparkException: Job aborted.\n"
            "\tat org.Rdd.collect\n"
            "OSError: no space is left\n"
        )

    monkeypatch.setattr("tfring.spark.cluster.environment_of", fail)
    with pytest.raises(RuntimeError, match="has failed: OSError: no space is"):
        tfring.spark.run(len, num_proc=2)

"""`tfring.spark.run` in sessions of other kinds, each in its own program."""

import os
import signal
import subprocess
import sys

from conftest import SECONDS, wait_for

from tfring.launcher.hosts import cpus_of_slot


def run(script, folder, **variables):
    """Runs a program with a session of its own; returns its output.

    A variable whose value is None is not set.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", script, folder],
        cwd=folder,
        env={k: v for k, v in environment.items() if v is not None},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


def test_the_cores_and_the_gpus_of_a_task(tmp_path):
    find = tmp_path / "find_gpus"
    found = '{"name": "gpu", "addresses": ["7"]}'
    find.write_text(f"#!/bin/sh\necho '{found}'\n")
    find.chmod(0o755)
    script = """
import os, sys
from pyspark.sql import SparkSession
import tfring.spark

conf = {
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",
    "spark.authenticate.secret": "of a test",
    "spark.worker.resource.gpu.amount": "1",
    "spark.worker.resource.gpu.discoveryScript": sys.argv[1] + "/find_gpus",
    "spark.executor.resource.gpu.amount": "1",
    "spark.task.resource.gpu.amount": "1",
}
SparkSession.builder.master("local-cluster[2,1,1024]").config(
    map=conf).getOrCreate()
names = ["TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]

def work():
    return os.sched_getaffinity(0), [os.environ.get(name) for name in names]

print(tfring.spark.run(work, num_proc=2))
"""
    output, said = run(script, tmp_path, TF_NUM_INTRAOP_THREADS=None)
    share = [(cpus_of_slot(rank, 2), ["1", "1", "7"]) for rank in range(2)]
    assert output == f"{share}\n"
    assert "spark.authenticate" not in said


def test_executors_with_another_python(tmp_path):
    python = tmp_path / "other_python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    script = """
import os, sys
sys.path[:0] = os.environ.pop("PATH_OF_TFRING").split(":")
from pyspark.sql import SparkSession
import tfring.spark

SparkSession.builder.master("local[2]").config(
    "spark.ui.enabled", "false").getOrCreate()
try:
    tfring.spark.run(len, num_proc=2)
except RuntimeError as error:
    print(error)
"""
    output, _ = run(
        script,
        tmp_path,
        PATH_OF_TFRING=os.environ["PYTHONPATH"],
        PYTHONPATH="",
        PYSPARK_PYTHON=str(python),
    )
    [line] = output.splitlines()
    assert f"the executors' Python is {python}" in line
    assert f"than the driver's, {sys.executable}" in line


def test_an_interrupt(tmp_path):
    script = """
import sys, functions
from pyspark.sql import SparkSession
import tfring.spark
session = SparkSession.builder.master("local[2]").config(
    "spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("OFF")
try:
    tfring.spark.run(functions.sleep, (sys.argv[1],), num_proc=2)
except KeyboardInterrupt:
    print("interrupted; then", tfring.spark.run(lambda: 5, num_proc=2))
"""
    program = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len([*tmp_path.glob("rank*")]) == 2)
    program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=SECONDS)
    assert "interrupted; then [5, 5]" in output

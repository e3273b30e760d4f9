"""What a job needs to know of a Spark session, and of a task in it."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

from absl import logging

CALLER = "tfring.spark.run"
_AGAIN_SECONDS = 0.5
_OTHER_PYTHON = "No module named 'tfring'|Python in worker has different"


def active_context() -> Any:
    """Returns the active SparkContext.

    Raises:
        RuntimeError: pyspark is not installed, or nothing is active.
    """
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise RuntimeError(
            f"{CALLER}: pyspark is not installed: pip install 'tfring[spark]'."
        ) from error

    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError(
            f"{CALLER}: there is no active SparkContext in this process. Make "
            "a session first: SparkSession.builder.getOrCreate()."
        )
    return context


def check_barrier(context: Any, ranks: int, timeout_seconds: float) -> None:
    """Waits until the session has a slot for each rank at the same time.

    Raises:
        RuntimeError: After that time there are still too few slots.
        ValueError: The session allocates executors dynamically.
    """
    conf = context.getConf()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ValueError(
            f"{CALLER}: spark.dynamicAllocation.enabled is true, and Spark's "
            "barrier stages need it false. Set it so in the session, or pass "
            "min_num_proc for an elastic job."
        )
    spark = context._jsc.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + timeout_seconds
    while (slots := spark.maxNumConcurrentTasks(profile)) < ranks:
        if time.monotonic() >= deadline:
            raise RuntimeError(
                f"{CALLER}: num_proc={ranks}, and the executors have "
                f"{slots} slots of spark.task.cpus="
                f"{conf.get('spark.task.cpus', '1')} after "
                f"{timeout_seconds:g} s (start_timeout). Ask for fewer ranks, "
                "or start more executors, or larger ones."
            )
        time.sleep(_AGAIN_SECONDS)


def warn_unless_authenticated(context: Any) -> None:
    """Warns if the job's token crosses the network unprotected."""
    is_local = context.master.startswith("local")
    is_safe = context.getConf().get("spark.authenticate", "false") == "true"
    if not is_local and not is_safe:
        logging.warning(
            "%s: spark.authenticate is not set, so whoever reads Spark's "
            "traffic can join this job. Set it, and "
            "spark.network.crypto.enabled.",
            CALLER,
        )


def environment_of(task: Any) -> dict[str, str]:
    """Returns variables that limit a rank to the cores and GPUs of its task.

    Numbers of threads that the executor's environment sets are kept.
    """
    names = {"TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"} - os.environ.keys()
    environment = dict.fromkeys(names, str(task.cpus()))
    if (gpu := task.resources().get("gpu")) is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.addresses)
    return environment


def is_cancelled(error: Exception) -> bool:
    """Tells whether the error says that the Spark job was cancelled."""
    return re.search(r"\bJob \d+ cancelled\b", str(error)) is not None


def explanation(error: Exception, context: Any) -> str:
    """Returns a sentence in place of a page of Java."""
    text = str(error)
    if re.search(_OTHER_PYTHON, text):
        return (
            f"the executors' Python is {context.pythonExec}, which has no "
            "tfring or is of another version than the driver's, "
            f"{sys.executable}. Set PYSPARK_PYTHON before the session is made, "
            "and install tfring there."
        )
    if isinstance(error, TimeoutError):
        return "the tasks of the Spark job do not end."
    if is_cancelled(error):
        return "the Spark job was cancelled."
    of_python = re.search(r"^\w+(?:Error|Exception): .+", text, re.MULTILINE)
    of_java = re.search(r"(?<=^: ).+", text, re.MULTILINE)
    found = of_python or of_java
    line = found[0] if found else text.strip().partition("\n")[0]
    return f"the Spark job has failed: {line}"

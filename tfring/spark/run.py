"""`run`: a barrier stage of Spark, each task of which has a rank."""

from __future__ import annotations

import functools
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from tfring.launcher.launcher_process import Outcome, Rendezvous, Ticket
from tfring.launcher.placed import (
    Returned,
    check_counts,
    pickled_call,
    results,
    start_part,
)
from tfring.spark import cluster
from tfring.spark.cluster import CALLER

_Result = TypeVar("_Result")

_COUNTS = ("num_proc", "min_num_proc", "max_num_proc")
# How often a task checks whether its executor still lives.
_LOOK_SECONDS = 0.2
# How long the launcher has, after an error of Spark, to report the cause.
_LAUNCHER_SECONDS = 3.0
# How long Spark has to return the results after the end of a job. Tasks that
# had no slot before start then, and end at once.
_RESULT_SECONDS = 60.0
# How long the tasks have to end by themselves after a failure.
_TASK_SECONDS = 10.0


def run(
    fn: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    *,
    start_timeout: float = 600.0,
    verbose: bool = False,
) -> list[_Result]:
    """Runs a function on ranks in Spark's executors, and returns the results.

    Call it on Spark's driver, in a program or a notebook with an active
    session. Each task of a stage starts one rank, which is a process below the
    executor and calls `fn(*args, **kwargs)` once. `fn` calls `tfring.init()`
    and does the work of a script. Output of the ranks appears here, each line
    with rank and host. Ranks on one machine divide its cores.

    The stage is a barrier stage: all ranks start together, and if one is lost,
    all end and Spark does not try again. With `min_num_proc` the job is
    elastic: its tasks are plain ones, and `fn` goes on with the ranks that are
    left, as in `tfringrun --elastic`. Spark starts a lost task again, and
    further ones up to `max_num_proc`, where it has a slot. They join as new
    ranks.

    An interrupt, or a cancelled Spark job, ends the ranks.

    Args:
        fn: The function. It may be a lambda, or be defined in the program or
            the notebook, if cloudpickle is installed on driver and executors.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments, the same on every rank.
        num_proc: The number of ranks; None: `spark.default.parallelism`. Each
            rank needs a slot of `spark.task.cpus` cores, at the same time. An
            elastic job begins with this many.
        env: Environment variables of the ranks. By default
            `TF_NUM_INTRAOP_THREADS` and `OMP_NUM_THREADS` are
            `spark.task.cpus`. A rank sees the GPUs that Spark has given to its
            task.
        min_num_proc: The job is elastic, and goes on with this many ranks.
        max_num_proc: The most ranks of an elastic job. None: `num_proc`.
        start_timeout: Seconds until all ranks must have a slot; in an elastic
            job, for how long it may have too few ranks.
        verbose: Show where the seconds of the job's start and end went.

    Returns:
        The results of `fn`, by rank.

    Raises:
        RuntimeError: There is no active SparkContext, too few slots, another
            Python on the executors, or a rank that was killed.
        TypeError: `fn` cannot be called, or something cannot be pickled.
        ValueError: A number is not valid, or the session allocates executors
            dynamically, which barrier stages do not allow.
        Exception: The exception of the rank that failed first, with its
            traceback as cause.

    Example:

    ```py
    import tfring.spark

    def train(rate):
        import tfring

        tfring.init()
        ...
        return tfring.rank()

    tfring.spark.run(train, args=(1e-3,), num_proc=2)  # [0, 1]
    ```

    Reference:
        `horovod.spark.run` of Horovod 0.28.
    """
    call = pickled_call(CALLER, fn, args, kwargs)
    context = cluster.active_context()
    ranks = num_proc or context.defaultParallelism
    check_counts(CALLER, _COUNTS, ranks, min_num_proc, max_num_proc)
    if min_num_proc is None:
        cluster.check_barrier(context, ranks, start_timeout)
    cluster.warn_unless_authenticated(context)
    rendezvous = Rendezvous(
        ranks,
        min_num_proc,
        max_num_proc,
        caller=CALLER,
        interface=context.getConf().get("spark.driver.host"),
        timeout_seconds=start_timeout,
        verbose=verbose,
    )
    tasks = max_num_proc or ranks
    rows = context.parallelize(range(tasks), tasks)
    if min_num_proc is None:
        rows = rows.barrier()
    task = functools.partial(
        _run_part, rendezvous.ticket, call, dict(env or {})
    )
    tag = f"tfring-{uuid.uuid4().hex}"
    rows = rows.mapPartitionsWithIndex(task)
    stage = _submit(context, rows, tag, rendezvous)
    try:
        outcome = rendezvous.follow()
        return results(_returned(context, stage, outcome), outcome)
    except BaseException:
        rendezvous.stop()
        if not stage.done():
            context.cancelJobsWithTag(tag)
        raise


def _run_part(
    ticket: Ticket, call: bytes, env: Mapping[str, str], index: int, rows: Any
) -> Iterator[Returned]:
    """Runs a rank in a task of Spark, and yields what it has returned."""
    from pyspark import TaskContext

    task = TaskContext.get()
    part = start_part(
        ticket,
        f"{socket.gethostname()}/{task.taskAttemptId()}",
        call,
        threads=task.cpus(),
        environment={**cluster.environment_of(task), **env},
    )
    try:
        # A Python worker survives its executor, and gets another parent.
        parent = os.getppid()
        while not part.has_ended(_LOOK_SECONDS):
            if os.getppid() != parent:
                return
        yield from part.returned()
    finally:
        part.stop()


def _submit(
    context: Any, rows: Any, tag: str, rendezvous: Rendezvous
) -> Future[list[Returned]]:
    """Submits the stage of the ranks; returns the future of its results.

    A thread waits for them, and ends the job if Spark fails. The main thread
    must not wait, because an interrupt in a call of py4j would break py4j's
    connection.
    """
    from pyspark import InheritableThread

    stage: Future[list[Returned]] = Future()

    def collect() -> None:
        try:
            context.addJobTag(tag)
            stage.set_result(rows.collect())
        except Exception as error:
            stage.set_exception(error)
            rendezvous.end(_LAUNCHER_SECONDS)

    InheritableThread(target=collect, daemon=True).start()
    return stage


def _returned(
    context: Any, stage: Future[list[Returned]], outcome: Outcome
) -> list[Returned]:
    """Returns what the ranks have returned, after the end of the job.

    Raises:
        RuntimeError: Spark has failed, and the launcher does not know why.
    """
    has_failed = outcome.status != 0
    try:
        return stage.result(_TASK_SECONDS if has_failed else _RESULT_SECONDS)
    except Exception as error:
        # After a cancellation the launcher only knows that ranks were lost.
        if outcome.said and not cluster.is_cancelled(error):
            return []
        said = cluster.explanation(error, context)
        raise RuntimeError(f"{CALLER}: {said}") from error

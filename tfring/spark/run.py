"""`run`: a barrier stage of Spark, each task of which has a rank."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_Result = TypeVar("_Result")

_CALLER = "tfring.spark.run"
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
    call = pickled_call(_CALLER, fn, args, kwargs)
    context = cluster.active_context(_CALLER)
    ranks = num_proc or context.defaultParallelism
    check_counts(
        _CALLER,
        ("num_proc", ranks),
        ("min_num_proc", min_num_proc),
        ("max_num_proc", max_num_proc),
    )
    is_elastic = min_num_proc is not None
    if not is_elastic:
        cluster.check_barrier(context, ranks, start_timeout, _CALLER)
    cluster.warn_unless_authenticated(context, _CALLER)
    rendezvous = Rendezvous(
        ranks,
        min_num_proc,
        max_num_proc,
        caller=_CALLER,
        interface=context.getConf().get("spark.driver.host"),
        timeout_seconds=start_timeout,
        verbose=verbose,
    )
    stage = _Stage(
        context,
        max_num_proc or ranks,
        _task(rendezvous.ticket, call, dict(env or {}), is_elastic=is_elastic),
        is_barrier=not is_elastic,
        on_error=lambda: rendezvous.end(_LAUNCHER_SECONDS),
    )
    try:
        outcome = rendezvous.follow()
    except BaseException:
        rendezvous.stop()
        stage.cancel()
        raise
    return _results(stage, outcome)


def _results(stage: _Stage, outcome: Outcome) -> list[Any]:
    has_failed = outcome.status != 0
    stage.join(_TASK_SECONDS if has_failed else _RESULT_SECONDS)
    # After a cancellation the launcher only knows that ranks were lost.
    if stage.error is not None and (stage.was_cancelled or not outcome.said):
        raise cluster.explained(stage.error, stage.context, _CALLER)
    return results(stage.returned, outcome)


def _task(
    ticket: Ticket, call: bytes, env: dict[str, str], *, is_elastic: bool
) -> Callable[[int, Any], Iterator[Returned]]:
    """Returns the function of a task, which Spark sends to its executors."""

    def run_part(index: int, rows: Any) -> Iterator[Returned]:
        from pyspark import BarrierTaskContext, TaskContext

        task = (TaskContext if is_elastic else BarrierTaskContext).get()
        part = start_part(
            ticket,
            cluster.place_of(task),
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

    return run_part


class _Stage:
    """The stage of the ranks. A thread submits it and waits for its end.

    The main thread must not wait: an interrupt in a call of py4j would break
    py4j's connection.

    Attributes:
        returned: What the ranks have returned.
        error: The error that Spark has raised, or None.
        was_cancelled: Somebody else has cancelled the Spark job.
    """

    def __init__(
        self,
        context: Any,
        tasks: int,
        task: Callable[[int, Any], Iterator[Returned]],
        *,
        is_barrier: bool,
        on_error: Callable[[], None],
    ) -> None:
        from pyspark import InheritableThread

        self.context = context
        self.returned: list[Returned] = []
        self.error: Exception | None = None
        self.was_cancelled = False
        self._cancels = False
        self._tag = f"tfring-{uuid.uuid4().hex}"
        self._on_error = on_error
        rows = context.parallelize(range(tasks), tasks)
        rows = rows.barrier() if is_barrier else rows
        self._rows = rows.mapPartitionsWithIndex(task)
        self._thread: threading.Thread = InheritableThread(
            target=self._collect, daemon=True
        )
        self._thread.start()

    def _collect(self) -> None:
        self.context.addJobTag(self._tag)
        try:
            self.returned = self._rows.collect()
        except Exception as error:
            self.error = error
            self.was_cancelled = (
                cluster.is_cancelled(error) and not self._cancels
            )
            self._on_error()

    def join(self, seconds: float) -> None:
        """Waits for the end of the stage, and cancels it if it is late."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.cancel()
            self._thread.join(_TASK_SECONDS)

    def cancel(self) -> None:
        self._cancels = True
        self.context.cancelJobsWithTag(self._tag)

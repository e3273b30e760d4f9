"""`RayExecutor`: places actors by Ray, which join a rendezvous as ranks."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, as_completed, wait
from typing import Any

from tfring.launcher.launcher_process import Outcome, Rendezvous
from tfring.launcher.placed import Returned, check_counts, results
from tfring.ray.worker import Worker

_CALLER = "tfring.ray"
_COUNTS = ("num_workers", "min_workers", "max_workers")
# How long the launcher has to say which rank has failed first.
_OUTCOME_SECONDS = 10.0
# How long functions have to return, or to raise, after the end of the job; and
# how long ranks have to leave it, which takes an idle rank no time.
_RETURN_SECONDS = 5.0
_LOOK_SECONDS = 0.5
# An elastic job ends once it has had too few ranks for this long.
_ELASTIC_SECONDS = 600.0


class RayExecutor:
    """Runs functions on ranks that are actors of a Ray cluster.

    The actors live from `start` to `shutdown`, so that functions may leave
    state in their process for the next ones. Functions call `tfring.init()`,
    which does nothing after the first time. All ranks take part in a
    collective, so call functions with collectives by `run`.

    A function that raises, an actor that is lost, or an interrupt such as
    Ctrl-C ends all ranks; then call `shutdown`, and `start` for new ones.

    With `min_workers` the job is elastic, and goes on with the actors that are
    left. Ray starts lost actors again, and further ones up to `max_workers`,
    where it has room. They join as new ranks. Such an executor runs one
    function after each `start`, by `run`.

    Args:
        num_workers: The number of ranks; an elastic job begins with this many.
        cpus_per_worker: The CPUs that Ray reserves for each rank.
        gpus_per_worker: The GPUs that Ray reserves for each rank. The rank sees
            no others.
        min_workers: The job is elastic, and goes on with this many ranks.
        max_workers: The most ranks of an elastic job. None: `num_workers`.
        use_current_placement_group: Take the bundles of the placement group
            that this process is in, if it is in one. Otherwise the executor
            makes one, except for an elastic job, which takes what there is.
        start_timeout: Seconds until all ranks must have a place. An elastic job
            waits 600 s for `min_workers`.

    Raises:
        ImportError: ray is not installed.
        ValueError: A number is not valid.

    Example:

    ```py
    import ray
    import tfring.ray

    def train(rate):
        import tfring

        tfring.init()
        ...
        return tfring.rank()

    ray.init()
    executor = tfring.ray.RayExecutor(num_workers=2)
    executor.start()
    executor.run(train, args=[1e-3])  # [0, 1]
    executor.shutdown()
    ```

    Reference:
        `horovod.ray.RayExecutor` of Horovod 0.28.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        cpus_per_worker: float = 1,
        gpus_per_worker: float = 0,
        min_workers: int | None = None,
        max_workers: int | None = None,
        use_current_placement_group: bool = True,
        start_timeout: float = 100.0,
    ) -> None:
        check_counts(_CALLER, _COUNTS, num_workers, min_workers, max_workers)
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                f"{_CALLER}: ray is not installed: pip install 'tfring[ray]'."
            ) from error
        self._ray: Any = ray
        self._size = num_workers
        self._minimum = min_workers
        self._maximum = max_workers or num_workers
        self._bundle = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
        self._use_current_group = use_current_placement_group
        self._start_timeout = start_timeout
        # The placement group that `start` has made.
        self._group: Any = None
        self._rendezvous: Rendezvous | None = None
        self._job: Future[Outcome]
        # The actors, in the order of the ranks unless the job is elastic.
        self._workers: list[Any] = []

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Places the actors, which join as ranks.

        Args:
            executable_cls: A class, of which each rank makes an object for
                `execute`.
            executable_args: The positional arguments of the class.
            executable_kwargs: The keyword arguments of the class.
            extra_env_vars: Environment variables of the ranks.

        Raises:
            RuntimeError: The executor has started already, or a rank was lost
                meanwhile.
            TimeoutError: The cluster has no room for the ranks.
            ValueError: `executable_cls` is given, and the job is elastic.
        """
        if self._rendezvous is not None:
            raise RuntimeError(
                f"{_CALLER}: start was called before. Call shutdown first."
            )
        if executable_cls is not None:
            self._refuse_if_elastic("executable_cls")
        try:
            self._join(self._reserve(), self._environment(extra_env_vars or {}))
            if executable_cls is not None:
                made = _bound(
                    executable_cls, executable_args, executable_kwargs
                )
                self._get([w.make.remote(made) for w in self._workers])
        except BaseException:
            self.shutdown()
            raise

    def _environment(self, extra: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the variables of the ranks; a subclass may add some."""
        return extra

    def _reserve(self) -> Any:
        """Returns the scheduling strategy of the actors, or None."""
        util = self._ray.util
        group = None
        if self._use_current_group:
            group = util.get_current_placement_group()
        if group is None and self._minimum is None:
            bundles = [self._bundle] * self._size
            self._group = group = util.placement_group(bundles)
            if not group.wait(self._start_timeout):
                raise TimeoutError(
                    f"{_CALLER}: after {self._start_timeout:g} s the cluster "
                    f"has no room for {self._size} workers of "
                    f"{self._bundle} each."
                )
        if group is None:
            return None
        strategies = util.scheduling_strategies
        return strategies.PlacementGroupSchedulingStrategy(group)

    def _join(self, strategy: Any, environment: Mapping[str, str]) -> None:
        """Places the actors, and waits until they are ranks."""
        is_elastic = self._minimum is not None
        seconds = _ELASTIC_SECONDS if is_elastic else self._start_timeout
        rendezvous = Rendezvous(
            self._size,
            self._minimum,
            self._maximum,
            caller=_CALLER,
            interface=self._ray.util.get_node_ip_address(),
            timeout_seconds=seconds,
        )
        job: Future[Outcome] = Future()
        self._rendezvous, self._job = rendezvous, job
        threading.Thread(
            target=lambda: job.set_result(rendezvous.follow()), daemon=True
        ).start()
        retries = -1 if is_elastic else 0
        actor = self._ray.remote(Worker).options(
            num_cpus=self._bundle["CPU"],
            num_gpus=self._bundle["GPU"],
            scheduling_strategy=strategy,
            max_restarts=retries,
            max_task_retries=retries,
        )
        self._workers = [
            actor.remote(rendezvous.ticket, dict(environment))
            for _ in range(self._maximum)
        ]
        if not is_elastic:
            numbers = self._get([w.number.remote() for w in self._workers])
            by_number = dict(zip(numbers, self._workers, strict=True))
            self._workers = [by_number[number] for number in sorted(numbers)]

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on all ranks; returns its results by rank.

        Args:
            fn: The function.
            args: Its positional arguments, the same on every rank.
            kwargs: Its keyword arguments, the same on every rank.

        Raises:
            RuntimeError: `start` has not been called, or a rank was lost.
            Exception: The exception of the rank that failed first. Ray puts the
                rank's traceback into its text.
        """
        call = _bound(fn, args, kwargs)
        if self._minimum is None:
            return self._get([w.run.remote(call) for w in self._started()])
        return self._get([w.run_to_end.remote(call) for w in self._started()])

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on all ranks; returns Ray's references by rank."""
        self._refuse_if_elastic("run_remote")
        call = _bound(fn, args, kwargs)
        return [worker.run.remote(call) for worker in self._started()]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls `fn(executable)` on all ranks; returns the results by rank."""
        self._refuse_if_elastic("execute")
        return self._get([w.execute.remote(fn) for w in self._started()])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn(executable)` on rank 0; it may not use a collective."""
        self._refuse_if_elastic("execute_single")
        return self._get([self._started()[0].execute.remote(fn)])[0]

    def shutdown(self) -> None:
        """Ends the ranks, and gives their places back."""
        if self._rendezvous is not None and not self._job.done():
            leaving = [w.leave.remote().future() for w in self._workers]
            _, busy = wait(leaving, _RETURN_SECONDS)
            self._end(0.0 if busy else _RETURN_SECONDS)
        self._kill_workers()
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        self._rendezvous = self._group = None

    def _refuse_if_elastic(self, what: str) -> None:
        if self._minimum is not None:
            raise ValueError(
                f"{_CALLER}: {what} is for ranks that do not change, and with "
                "min_workers they may. Call run, or leave min_workers out."
            )

    def _started(self) -> list[Any]:
        if self._rendezvous is None:
            raise RuntimeError(f"{_CALLER}: call start first.")
        if self._job.done():
            raise RuntimeError(
                f"{_CALLER}: the job of these ranks has ended. Call shutdown, "
                "and start again."
            )
        return self._workers

    def _get(self, references: list[Any]) -> list[Any]:
        """Returns the results, or raises the exception of the first failure.

        A function that raises, and an interrupt, end the job. The launcher
        reports actors that have died.
        """
        calls = [reference.future() for reference in references]
        left = {*calls}
        try:
            while left and not self._errors(calls) and not self._job.done():
                _, left = wait(left, _LOOK_SECONDS, FIRST_EXCEPTION)
            if self._minimum is not None:
                return self._results_of_elastic(calls)
            if all(call.done() and not call.exception() for call in calls):
                return [call.result() for call in calls]
            raise self._failure(calls)
        except KeyboardInterrupt:
            self._end()
            raise

    def _errors(self, calls: list[Future[Any]]) -> dict[int, Exception]:
        """Returns what functions have raised, by the number of the call.

        The call of an actor that has died is not among them.
        """
        kind = self._ray.exceptions.RayTaskError
        return {
            number: error
            for number, call in enumerate(calls)
            if call.done() and isinstance(error := call.exception(), kind)
        }

    def _failure(self, calls: list[Future[Any]]) -> Exception:
        """Returns the exception of the rank that failed first."""
        outcome = self._end(_OUTCOME_SECONDS)
        wait(calls, _RETURN_SECONDS)
        errors = self._errors(calls)
        first = outcome.ranks.get(outcome.failed_worker or "", -1)
        # A rank that was killed has no exception. Others fail for lack of it.
        if first not in errors and not outcome.said:
            first = min(errors, default=first)
        said = outcome.said or "the ranks are lost."
        return errors.get(first, RuntimeError(f"{_CALLER}: {said}"))

    def _results_of_elastic(self, calls: list[Future[Any]]) -> list[Any]:
        """Returns the results of the ranks with which the job has ended."""
        if errors := self._errors(calls):
            self._end()
            raise errors[min(errors)]
        outcome = self._end(_OUTCOME_SECONDS)
        returned: list[Returned] = []
        with contextlib.suppress(TimeoutError):
            for call in as_completed(calls, _RETURN_SECONDS):
                if call.exception() is None:
                    returned.append(call.result())
                # Further actors may never get a place.
                if len(returned) >= len(outcome.ranks):
                    break
        return results(returned, outcome)

    def _end(self, patience_seconds: float = 0.0) -> Outcome:
        """Ends the job unless it has ended; see `Rendezvous.end`."""
        if not self._job.done():
            assert self._rendezvous is not None
            self._rendezvous.end(patience_seconds)
            if self._minimum is not None:
                # Ray would start them again, in a job that has ended.
                self._kill_workers()
        return self._job.result()

    def _kill_workers(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []


def _bound(fn: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    return functools.partial(fn, *(args or ()), **(kwargs or {}))

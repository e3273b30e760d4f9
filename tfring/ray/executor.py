"""`RayExecutor`: places actors by Ray, which join a rendezvous as ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfring.launcher.launcher_process import Outcome, Rendezvous, Ticket
from tfring.launcher.placed import check_counts, results
from tfring.ray.worker import Worker

_CALLER = "tfring.ray"
# How long the launcher has to say which rank has failed first.
_OUTCOME_SECONDS = 10.0
# How long functions have to return, or to raise, after the end of the job.
_RETURN_SECONDS = 5.0
# How long the ranks have to leave: idle ranks leave at once.
_LEAVE_SECONDS = 5.0
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
        check_counts(
            _CALLER,
            ("num_workers", num_workers),
            ("min_workers", min_workers),
            ("max_workers", max_workers),
        )
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{_CALLER}: ray is not installed: pip install 'tfring[ray]'."
            ) from error
        self._size = num_workers
        self._minimum = min_workers
        self._maximum = max_workers or num_workers
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._use_current_group = use_current_placement_group
        self._start_timeout = start_timeout
        self._group: Any = None
        self._owns_group = False
        self._rendezvous: Rendezvous | None = None
        self._outcome: Outcome | None = None
        self._follower: threading.Thread
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
        made = (executable_cls, executable_args or [], executable_kwargs or {})
        try:
            self._reserve()
            self._join(self._environment(extra_env_vars or {}))
            if executable_cls is not None:
                self._get([w.make.remote(*made) for w in self._workers])
        except BaseException:
            self.shutdown()
            raise

    def _environment(self, extra: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the variables of the ranks; a subclass may add some."""
        return extra

    def _join(self, environment: Mapping[str, str]) -> None:
        import ray

        is_elastic = self._minimum is not None
        rendezvous = Rendezvous(
            self._size,
            self._minimum,
            self._maximum,
            caller=_CALLER,
            interface=ray.util.get_node_ip_address(),
            timeout_seconds=_ELASTIC_SECONDS
            if is_elastic
            else self._start_timeout,
        )
        self._rendezvous = rendezvous

        def follow() -> None:
            self._outcome = rendezvous.follow()

        self._follower = threading.Thread(target=follow, daemon=True)
        self._follower.start()
        self._workers = [
            self._place(rendezvous.ticket, index, environment)
            for index in range(self._maximum)
        ]
        if not is_elastic:
            names = self._get([w.name.remote() for w in self._workers])
            # w1 is rank 0.
            named = zip(names, self._workers, strict=True)
            by_rank = sorted(named, key=lambda each: int(each[0][1:]))
            self._workers = [worker for _, worker in by_rank]

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
        if self._minimum is not None:
            return self._run_elastic(fn, args or [], kwargs or {})
        return self._get(self.run_remote(fn, args, kwargs))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on all ranks; returns Ray's references by rank."""
        self._refuse_if_elastic("run_remote")
        return [
            worker.run.remote(fn, args or [], kwargs or {})
            for worker in self._started()
        ]

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
        from ray.util.placement_group import remove_placement_group

        if self._rendezvous is not None:
            if self._outcome is None and self._has_left():
                self._follower.join(_LEAVE_SECONDS)
            self._end()
        self._kill_workers()
        if self._owns_group:
            remove_placement_group(self._group)
        self._rendezvous = self._outcome = self._group = None
        self._owns_group = False

    def _has_left(self) -> bool:
        """Asks the ranks to leave; returns False if some are still busy."""
        import ray

        if self._minimum is not None:
            return False
        leaving = [worker.leave.remote() for worker in self._workers]
        _, busy = ray.wait(
            leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS
        )
        return not busy

    def _refuse_if_elastic(self, what: str) -> None:
        if self._minimum is not None:
            raise ValueError(
                f"{_CALLER}: {what} is for ranks that do not change, and with "
                "min_workers they may. Call run, or leave min_workers out."
            )

    def _started(self) -> list[Any]:
        if self._rendezvous is None:
            raise RuntimeError(f"{_CALLER}: call start first.")
        if self._outcome is not None:
            raise RuntimeError(
                f"{_CALLER}: the job of these ranks has ended. Call shutdown, "
                "and start again."
            )
        return self._workers

    def _reserve(self) -> None:
        import ray
        from ray.util.placement_group import placement_group

        if self._use_current_group:
            self._group = ray.util.get_current_placement_group()
        if self._group is not None or self._minimum is not None:
            return
        bundle = {"CPU": self._cpus}
        if self._gpus:
            bundle["GPU"] = self._gpus
        self._group = placement_group([bundle] * self._size)
        self._owns_group = True
        if not self._group.wait(self._start_timeout):
            raise TimeoutError(
                f"{_CALLER}: after {self._start_timeout:g} s the cluster has "
                f"no room for {self._size} workers of {bundle} each."
            )

    def _place(
        self, ticket: Ticket, index: int, environment: Mapping[str, str]
    ) -> Any:
        import ray
        from ray.util.scheduling_strategies import (
            PlacementGroupSchedulingStrategy,
        )

        options: dict[str, Any] = {
            "num_cpus": self._cpus,
            "num_gpus": self._gpus,
        }
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, index if self._owns_group else -1
            )
        if self._minimum is not None:
            options |= {"max_restarts": -1, "max_task_retries": -1}
        actor = ray.remote(Worker).options(**options)
        return actor.remote(ticket, dict(environment))

    def _get(self, references: list[Any]) -> list[Any]:
        """Returns the results, or raises the exception of the first failure."""
        found, errors = self._wait(references)
        if len(found) == len(references):
            return [found[rank] for rank in range(len(references))]
        outcome = self._outcome
        assert outcome is not None
        first = outcome.ranks.get(outcome.failed_worker or "")
        if first in errors:
            raise errors[first] from None
        # A killed rank has no exception, and the other ranks fail because of
        # it.
        if errors and not outcome.said:
            raise errors[min(errors)] from None
        said = outcome.said or "the ranks are lost."
        raise RuntimeError(f"{_CALLER}: {said}")

    def _run_elastic(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> list[Any]:
        """Calls a function in all actors, also in those started again."""
        found, errors = self._wait(
            [w.run_to_end.remote(fn, args, kwargs) for w in self._started()]
        )
        for error in errors.values():
            raise error from None
        assert self._outcome is not None
        return results(found.values(), self._outcome)

    def _wait(
        self, references: list[Any]
    ) -> tuple[dict[int, Any], dict[int, Exception]]:
        """Waits until all calls have returned, or the job is over.

        A function that raises, and an interrupt, end the job. The launcher
        reports actors that have died.

        Returns:
            What the calls have returned, and what the functions have raised, by
            the number of the reference.
        """
        import ray

        is_elastic = self._minimum is not None
        left = {reference: n for n, reference in enumerate(references)}
        found: dict[int, Any] = {}
        errors: dict[int, Exception] = {}

        def take(count: int, seconds: float) -> None:
            ready, _ = ray.wait([*left], num_returns=count, timeout=seconds)
            for reference in ready:
                number = left.pop(reference)
                try:
                    found[number] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    errors[number] = error
                except ray.exceptions.RayError:
                    pass  # the actor has died

        try:
            while left and self._outcome is None and not errors:
                take(1, _LOOK_SECONDS)
            if is_elastic or len(found) < len(references):
                if self._outcome is None:
                    self._end(
                        0.0 if is_elastic and errors else _OUTCOME_SECONDS
                    )
                assert self._outcome is not None
                # Actors of an elastic job may wait for a place without end.
                last = self._outcome.ranks if is_elastic else references
                missing = min(len(last) - len(found), len(left))
                if missing > 0:
                    take(missing, _RETURN_SECONDS)
        except KeyboardInterrupt:
            self._end()
            raise
        return found, errors

    def _end(self, patience_seconds: float = 0.0) -> None:
        """Ends the job, and waits for its outcome; see `Rendezvous.end`."""
        assert self._rendezvous is not None
        self._rendezvous.end(patience_seconds)
        if self._minimum is not None:
            # Ray would start them again, in a job that has ended.
            self._kill_workers()
        self._follower.join()

    def _kill_workers(self) -> None:
        import ray

        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

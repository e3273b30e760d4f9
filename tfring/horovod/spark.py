"""`horovod.spark`: Horovod's arguments for `tfring.spark.run`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

import tfring.spark
from tfring.horovod import FOLDER, variables

# Horovod's default for `start_timeout`.
_START_SECONDS = 600.0


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: Any = None,
    use_gloo: Any = None,
    extra_mpi_args: Any = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: Any = None,
) -> list[Any]:
    """Calls `tfring.spark.run`; `stdout` and `stderr` get the output."""
    _say_unused(
        use_mpi=use_mpi,
        use_gloo=use_gloo,
        extra_mpi_args=extra_mpi_args,
        nics=nics,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
        executable=executable,
    )
    with _output(stdout, stderr):
        return tfring.spark.run(
            fn,
            args,
            kwargs,
            num_proc,
            environment(env),
            start_timeout=start_timeout or _START_SECONDS,
            verbose=verbose > 1,
        )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
) -> list[Any]:
    """Calls `tfring.spark.run` with `min_num_proc`."""
    _say_unused(
        reset_limit=reset_limit,
        nics=nics,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
    )
    with _output(stdout, stderr):
        return tfring.spark.run(
            fn,
            args,
            kwargs,
            num_proc or min_num_proc,
            environment(env),
            min_num_proc or num_proc or 1,
            max_num_proc,
            start_timeout=elastic_timeout or start_timeout or _START_SECONDS,
            verbose=verbose > 1,
        )


def environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Returns variables of ranks that import horovod."""
    given = dict(env or {})
    path = [str(FOLDER), *filter(None, [given.get("PYTHONPATH")])]
    return {
        **variables.counterparts({**os.environ, **given}),
        **given,
        "PYTHONPATH": os.pathsep.join(path),
    }


def _say_unused(**arguments: Any) -> None:
    names = [name for name, value in arguments.items() if value]
    if names:
        logging.warning(
            "horovod.spark: tfring has nothing for these arguments, and "
            "ignores them: %s.",
            ", ".join(names),
        )


@contextlib.contextmanager
def _output(stdout: Any, stderr: Any) -> Any:
    with contextlib.ExitStack() as stack:
        if stdout is not None:
            stack.enter_context(contextlib.redirect_stdout(stdout))
        if stderr is not None:
            stack.enter_context(contextlib.redirect_stderr(stderr))
        yield

"""`horovod.spark`: Horovod's arguments for `tfring.spark.run`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

import tfring.spark
from tfring import horovod

# Horovod's default for `start_timeout`.
_START_SECONDS = 600.0
# Arguments of Horovod for which tfring has nothing.
_UNUSED = {
    *("use_mpi", "use_gloo", "extra_mpi_args", "nics", "executable"),
    *("prefix_output_with_timestamp", "reset_limit"),
}


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    *,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    **others: Any,
) -> list[Any]:
    """Calls `tfring.spark.run`; `stdout` and `stderr` get the ranks' output."""
    if unknown := sorted(others.keys() - _UNUSED):
        raise TypeError(f"horovod.spark: there are no arguments {unknown}.")
    if unused := sorted(name for name, value in others.items() if value):
        logging.warning(
            "horovod.spark: tfring has nothing for these arguments, and "
            "ignores them: %s.",
            ", ".join(unused),
        )
    given = dict(env or {})
    with (
        contextlib.redirect_stdout(stdout or sys.stdout),
        contextlib.redirect_stderr(stderr or sys.stderr),
    ):
        return tfring.spark.run(
            fn,
            args,
            kwargs,
            num_proc,
            {**given, **horovod.settings(given)},
            min_num_proc,
            max_num_proc,
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
    **options: Any,
) -> list[Any]:
    """Calls `run` with `min_num_proc`."""
    return run(
        fn,
        args,
        kwargs,
        num_proc or min_num_proc,
        elastic_timeout or start_timeout,
        min_num_proc=min_num_proc or num_proc or 1,
        max_num_proc=max_num_proc,
        **options,
    )

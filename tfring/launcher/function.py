"""`tfring.run`: starts a function on ranks from a program or a notebook."""

from __future__ import annotations

import codecs
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfring.launcher import command_line, hosts as hosts_lib, private_files

_Result = TypeVar("_Result")

# After the ranks' grace the launcher has this long to end them, on all hosts.
_STOP_SECONDS = 15.0


class RankTracebackError(Exception):
    """The traceback of a rank, as text: the cause of the error in `run`."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run(
    fn: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = 2,
    hosts: str | None = None,
    *,
    verbose: bool = False,
) -> list[_Result]:
    """Runs a function on the ranks of a new job, and returns their results.

    It is for programs and notebooks, which have no script to pass to
    `tfringrun`. Each rank is its own process, which calls
    `fn(*args, **kwargs)` once. `fn` calls `tfring.init()` and does the work of
    a script. This process is not a rank: it waits, and shows the output of rank
    0 immediately.

    An interrupt, such as Ctrl-C or a notebook's stop button, ends the job. If a
    rank fails, all ranks end, and `run` raises the exception of the rank that
    failed first, with its traceback.

    Function, arguments and results are pickled, by cloudpickle if it is
    installed: only then may `fn` be a lambda, or be defined in a notebook or in
    the program itself (`__main__`). They are passed in files that only this
    user can read. The files are in the folder for temporary files; with other
    hosts they are in the working directory, which all hosts must share.

    Args:
        fn: The function, of any arguments.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments, the same on every rank.
        np: The number of ranks; None means one for each slot of `hosts`.
        hosts: Machines and how many ranks each takes, as for `tfringrun -H`:
            "node1:4,node2:4". None means this machine, or the machines that the
            batch system has allotted.
        verbose: Show how the job is started, and where the seconds of its start
            and its end went, as `tfringrun --verbose` does.

    Returns:
        The results of `fn`, by rank.

    Raises:
        RuntimeError: A rank was killed, exited or gave no result, the job
            could not be started, or this process is itself a rank.
        TypeError: `fn` cannot be called, or something cannot be pickled.
        ValueError: `np` or `hosts` is not valid.
        Exception: The exception of the rank that failed first.

    Example:

    ```py
    import tfring

    def train(rate):
        import tfring

        tfring.init()
        ...
        return tfring.rank(), rate

    tfring.run(train, args=(1e-3,), np=2)  # [(0, 0.001), (1, 0.001)]
    ```

    Reference:
        `horovod.run` of Horovod 0.28.
    """
    _check(fn, np)
    machines = hosts_lib.parse_hosts(hosts) if hosts else []
    call = _pickled_call(fn, tuple(args), dict(kwargs or {}))
    shared = not all(
        host.is_local() for host in machines
    ) or hosts_lib.manages_hosts(os.environ)
    folder = Path(
        tempfile.mkdtemp(
            prefix=".tfring-run-", dir=Path.cwd() if shared else None
        )
    )
    try:
        private_files.write(folder / "call", call)
        order = {
            "ranks": np,
            "hosts": hosts,
            "verbose": verbose,
            "terminals": [
                number
                for number, stream in ((1, sys.stdout), (2, sys.stderr))
                if _rewrites_lines(stream)
            ],
        }
        (folder / "order.json").write_text(json.dumps(order))
        _run_job(folder)
        return _results(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(fn: Any, np: int | None) -> None:
    if not callable(fn):
        raise TypeError(
            f"tfring.run: fn must be a function, got {type(fn).__name__}."
        )
    if np is not None and (not isinstance(np, int) or np < 1):
        raise ValueError(f"tfring.run: np must be at least 1, got {np!r}.")
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
        raise RuntimeError(
            "tfring.run starts a job, and this process is a rank of one. Call "
            "it from a program that no launcher started."
        )


def _pickled_call(fn: Any, args: Any, kwargs: Any) -> bytes:
    # The ranks' `__main__` is another module, with another folder in front.
    path = [entry or str(Path.cwd()) for entry in sys.path]
    try:
        if not private_files.knows_main() and fn.__module__ == "__main__":
            raise TypeError("it is defined in the program itself")
        call = private_files.dumps((fn, args, kwargs))
    except Exception as error:
        hint = (
            ""
            if private_files.knows_main()
            else " Install cloudpickle, or define it in a module."
        )
        raise TypeError(
            f"tfring.run: {fn!r} with its arguments cannot be sent to other "
            f"processes: {error}.{hint}"
        ) from error
    return private_files.dumps((path, call))


def _rewrites_lines(stream: Any) -> bool:
    """Tells if a progress bar on this stream may stay one line."""
    if type(stream).__module__.startswith("ipykernel"):
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # None, or closed.
        return False


def _run_job(folder: Path) -> None:
    """Runs the launcher to its end, and shows its output."""
    package = str(Path(__file__).parents[2])
    search = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tfring.launcher.function_job", str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        # Its end tells the launcher that this process is gone.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # An interrupt reaches it once, from here.
        start_new_session=True,
    )
    with process:
        try:
            _show_output(process)
            process.wait()
        except BaseException:
            _stop(process)
            raise


def _show_output(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    decoder = codecs.getincrementaldecoder("utf-8")
    with selectors.DefaultSelector() as selector:
        for pipe, name in (
            (process.stdout, "stdout"),
            (process.stderr, "stderr"),
        ):
            selector.register(
                pipe, selectors.EVENT_READ, (name, decoder("replace"))
            )
        while selector.get_map():
            for key, _ in selector.select():
                name, decode = key.data
                data = os.read(key.fd, 1 << 16)
                # Looked up each time: a notebook replaces it.
                stream = getattr(sys, name)
                if stream is not None:
                    _write(stream, decode.decode(data, final=not data))
                if not data:
                    selector.unregister(key.fileobj)


def _write(stream: Any, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the job; at once if this is interrupted, too."""
    try:
        process.terminate()
        # Closed pipes keep the launcher from waiting for a reader.
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        grace = command_line.grace_seconds(os.environ)
        process.wait(grace + _STOP_SECONDS)
    except BaseException:
        process.kill()
        raise


def _results(folder: Path) -> list[Any]:
    outcome = folder / "outcome.json"
    if not outcome.exists():
        raise RuntimeError("tfring.run: the launcher has ended by itself.")
    found = json.loads(outcome.read_text())
    rank, said = found["failed_rank"], found["said"]
    if rank is not None and (folder / f"error{rank}").exists():
        error, summary, text = private_files.load(folder / f"error{rank}")
        if error is None:  # It cannot be pickled.
            error = RuntimeError(f"tfring.run: rank {rank} failed: {summary}")
        raise error from RankTracebackError(f"Rank {rank}:\n{text}")
    if found["status"] != 0:
        said = said or f"the job ended with status {found['status']}."
        raise RuntimeError(f"tfring.run: {said}")
    results = []
    for rank in range(found["ranks"]):
        try:
            results.append(private_files.load(folder / f"result{rank}"))
        except FileNotFoundError:
            raise RuntimeError(
                f"tfring.run: rank {rank} ended before fn returned."
            ) from None
    return results

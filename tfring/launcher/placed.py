"""The interface by which processes that an engine has placed become ranks.

The engine (Spark, Ray, or a program on its own machine) places processes, and
carries a `Ticket` to each of them. Each process calls `start_part`, which joins
the `Rendezvous` with the ticket. The launcher of the rendezvous assigns the
ranks, watches them, and ends them all.

    rendezvous = Rendezvous(2, caller="tfring.run")
    part = start_part(rendezvous.ticket, "localhost", call, slots=2)
    outcome = rendezvous.follow()
    return results(part.returned(), outcome)

The launcher and each part end with the process that has started them, because
they watch their standard input.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from tfring.launcher import orders, private_files
from tfring.launcher.elastic import elastic_job
from tfring.launcher.hosts import Host
from tfring.launcher.launcher_process import (
    Outcome,
    Ticket,
    child_environment,
)
from tfring.launcher.reason import last_line

# How long a part may take to end its ranks and to remove its files.
_PART_SECONDS = 15.0


@dataclasses.dataclass(frozen=True)
class Returned:
    """The result, or the exception, of the function in a worker."""

    worker: str
    raised: bool
    # The result, or the exception with its line and its traceback.
    pickled: bytes = dataclasses.field(repr=False)


class RankTracebackError(Exception):
    """The traceback of a rank, as text: the cause of the error in a caller."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Part:
    """The ranks of a placed process, which are children of its child."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        complaints: IO[bytes] | None,
        on_loss: Callable[[], object],
    ) -> None:
        self._process = process
        self._complaints = complaints
        self._on_loss = on_loss
        self._data = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._data = self._process.stdout.read()
        if not self._data:
            self._on_loss()

    def has_ended(self, seconds: float | None) -> bool:
        """Waits for this long; returns True once its ranks have ended."""
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def returned(self, seconds: float | None = None) -> list[Returned]:
        """Waits until the part has ended; returns what its ranks returned.

        A part that does not end within `seconds` is killed, and has returned
        nothing. None: there is no limit.
        """
        if not self.has_ended(seconds):
            self._process.kill()
        data = self._data
        self.stop()
        return pickle.loads(data) if data else []

    def stop(self) -> None:
        """Ends the part with its ranks, unless it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PART_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def complaint(self) -> str:
        """Returns why another machine was not reached; "" if it was."""
        if self._complaints is None or self._data:
            return ""
        self._complaints.seek(0)
        status = f"exit status {self._process.returncode}"
        return last_line(self._complaints.read()) or status


def start_part(
    ticket: Ticket,
    place: str,
    call: bytes,
    *,
    slots: int = 1,
    threads: int = 1,
    environment: Mapping[str, str] | None = None,
    host: Host | None = None,
    order: int = 0,
    on_loss: Callable[[], object] = lambda: None,
) -> Part:
    """Starts a part of the job, in a child process.

    Args:
        ticket: The rendezvous' ticket.
        place: A name for the part, unique in the job.
        call: The function with its arguments, from `pickled_call`.
        slots: How many ranks it has.
        threads: How many threads a rank starts. Ranks with more threads than
            there are CPUs for are not bound to cores.
        environment: More environment variables for the ranks. The folders of
            its PYTHONPATH come before those of this process.
        host: The machine of the part, if it is another one.
        order: Parts with a smaller number have smaller ranks.
        on_loss: Called, in a thread, if the part ends without a result.
    """
    variables = dict(environment or {})
    search = search_path(variables)
    children = child_environment()
    if search:
        own = children["PYTHONPATH"]
        variables["PYTHONPATH"] = os.pathsep.join([*search, own])
    configured = {
        "token": ticket.token,
        "address": ticket.address,
        "host": place,
        "silence_seconds": elastic_job.silence_seconds(os.environ),
        "slots": slots,
        "threads": threads,
        "order": order,
        "environment": variables,
        # A rank finds the same modules as this process.
        "path": [*search, *(entry or str(Path.cwd()) for entry in sys.path)],
        "call_bytes": len(call),
    }
    host = host or Host("localhost", slots)
    complaints = None
    if not host.is_local():
        complaints = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        host.command("tfring.launcher.placed_part", children["PYTHONPATH"]),
        env=children,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        # An interrupt reaches the ranks through the launcher alone.
        start_new_session=True,
    )
    # If the part has ended already, the launcher misses its ranks.
    orders.write(process, configured, call)
    return Part(process, complaints, on_loss)


def search_path(environment: Mapping[str, str]) -> list[str]:
    """Returns the folders of PYTHONPATH."""
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in path if entry]


def node() -> str:
    """Names the machine, so that ranks with the same name can share memory.

    Ranks share memory through /proc/PID/fd, which takes one kernel, one PID
    namespace and one user. In containers the name of the host says none of
    this.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    key = f"{boot} {namespace} {os.getuid()}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{socket.gethostname()}-{digest[:16]}"


def check_counts(
    caller: str,
    names: tuple[str, str, str],
    ranks: Any,
    minimum: int | None,
    maximum: int | None,
) -> None:
    """Checks the numbers of ranks, for which the caller has names.

    Raises:
        ValueError: A number is not valid.
    """
    name, least, most = names
    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"{caller}: {name} must be at least 1, got {ranks!r}.")
    if minimum is not None and not 1 <= minimum <= ranks:
        raise ValueError(
            f"{caller}: {least} must be from 1 to {name}={ranks}, got "
            f"{minimum!r}."
        )
    if maximum is not None and minimum is None:
        raise ValueError(
            f"{caller}: {most} is for an elastic job. Pass {least}, too."
        )
    if maximum is not None and maximum < ranks:
        raise ValueError(
            f"{caller}: {most} must be at least {name}={ranks}, got "
            f"{maximum!r}."
        )


def pickled_call(caller: str, fn: Any, args: Any, kwargs: Any) -> bytes:
    """Pickles a function with its arguments.

    Raises:
        TypeError: `fn` cannot be called, or something cannot be pickled.
    """
    if not callable(fn):
        raise TypeError(
            f"{caller}: fn must be a function, got {type(fn).__name__}."
        )
    try:
        if not private_files.knows_main() and fn.__module__ == "__main__":
            raise TypeError("it is defined in the program itself")
        return private_files.dumps((fn, tuple(args), dict(kwargs or {})))
    except Exception as error:
        hint = (
            ""
            if private_files.knows_main()
            else " Install cloudpickle, or define it in a module."
        )
        raise TypeError(
            f"{caller}: {fn!r} with its arguments cannot be sent to other "
            f"processes: {error}.{hint}"
        ) from error


def described(error: Exception) -> bytes:
    """Pickles an exception, its line, and its traceback.

    The exception is None if it cannot be pickled and loaded again.
    """
    # Leave out the frame that called the function.
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    line = f"{type(error).__name__}: {error}"
    try:
        pickled = private_files.dumps((error, line, text.rstrip()))
        pickle.loads(pickled)
    except Exception:
        return pickle.dumps((None, line, text.rstrip()))
    return pickled


def results(returned: Iterable[Returned], outcome: Outcome) -> list[Any]:
    """Returns the results by rank.

    Raises:
        RuntimeError: The job has failed, or a rank gave no result.
        Exception: The exception of the rank that failed first, with its
            traceback as cause.
    """
    caller = outcome.caller
    of_worker = {each.worker: each for each in returned}
    failed = of_worker.get(outcome.failed_worker or "")
    if outcome.status != 0 and failed is not None and failed.raised:
        rank = outcome.ranks.get(failed.worker)
        error, line, text = pickle.loads(failed.pickled)
        if error is None:  # it could not be pickled
            error = RuntimeError(f"{caller}: rank {rank} failed: {line}")
        raise error from RankTracebackError(f"Rank {rank}:\n{text}")
    if outcome.status != 0:
        said = outcome.said or f"the job ended with status {outcome.status}."
        raise RuntimeError(f"{caller}: {said}")
    found = []
    for worker, rank in sorted(outcome.ranks.items(), key=lambda each: each[1]):
        if worker not in of_worker or of_worker[worker].raised:
            raise RuntimeError(
                f"{caller}: rank {rank} ended before fn returned."
            )
        found.append(pickle.loads(of_worker[worker].pickled))
    return found

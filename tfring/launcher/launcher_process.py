"""A job's launcher as a child process."""

from __future__ import annotations

import codecs
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfring.launcher import command_line, orders, processes
from tfring.rendezvous import handshake, wire

# How long the launcher has to end the ranks on all hosts after their grace.
_STOP_SECONDS = 15.0


@dataclasses.dataclass(frozen=True)
class Ticket:
    """Lets a placed process join, and anybody else who has the ticket."""

    address: tuple[str, int]
    token: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job has ended.

    Attributes:
        caller: Who has started the job.
        status: The job's exit status.
        ranks: The rank of each worker.
        failed_worker: The worker that failed first.
        said: Why the job has failed; "" if there is nothing to say.
    """

    caller: str
    status: int
    ranks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failed_worker: str | None = None
    said: str = ""


def child_environment() -> dict[str, str]:
    """Returns an environment in which a child imports this tfring."""
    package = str(Path(__file__).parents[2])
    search = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search)}


class Rendezvous:
    """The launcher of a job whose ranks come by themselves; see `placed_job`.

    It is a process of its own because a launcher takes over signals and
    orphans, which a program or a notebook needs for itself.

    Attributes:
        ticket: What each process needs to join.
    """

    def __init__(
        self,
        ranks: int,
        minimum: int | None = None,
        maximum: int | None = None,
        *,
        caller: str,
        interface: str = "127.0.0.1",
        timeout_seconds: float = 600.0,
        only_rank: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Starts the launcher.

        Args:
            ranks: The number of ranks with which the job begins.
            minimum: The fewest ranks with which an elastic job goes on. None:
                the job ends at the first loss.
            maximum: The most ranks of an elastic job. None: `ranks`.
            caller: The name that precedes the launcher's lines.
            interface: The address of this machine at which the launcher
                listens.
            timeout_seconds: How long it may take until all ranks have a place,
                and how long an elastic job may have too few ranks.
            only_rank: The rank whose output is shown; None shows all ranks.
            verbose: Show where the seconds of the job's start and end went.

        Raises:
            OSError: `interface` is no address of this machine.
        """
        self._caller = caller
        token = handshake.make_token()
        order = {
            "ranks": ranks,
            "minimum": minimum,
            "maximum": maximum,
            "token": token,
            "timeout_seconds": timeout_seconds,
            "terminals": _terminals(),
            "only_rank": only_rank,
            "verbose": verbose,
            "caller": caller,
        }
        # The socket listens already, so parts may connect before the launcher
        # accepts.
        with wire.listening_socket(interface) as listener:
            self.ticket = Ticket(listener.getsockname()[:2], token)
            self._start({**order, "listener": listener.fileno()})

    def _start(self, order: Mapping[str, Any]) -> None:
        reader, writer = os.pipe()
        self._outcome = os.fdopen(reader)
        module = "tfring.launcher.placed_job"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(writer)],
                env=child_environment(),
                pass_fds=[writer, order["listener"]],
                # The end of its stdin tells the launcher that this process is
                # gone.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # An interrupt reaches the launcher once: from this process.
                start_new_session=True,
            )
        except BaseException:
            self._outcome.close()
            raise
        finally:
            os.close(writer)
        # If the launcher has ended already, `follow` finds no outcome.
        orders.write(self._process, order)

    def follow(self) -> Outcome:
        """Shows the job's output until its end, and returns how it ended."""
        self._show_output()  # `with` would delay an interrupt
        with self._process, self._outcome as file:
            text = file.read()
        if not text:
            said = "the launcher has ended by itself."
            return Outcome(self._caller, 1, said=said)
        return Outcome(self._caller, **json.loads(text))

    def end(self, patience_seconds: float = 0.0) -> None:
        """Ends the job unless it ends by itself. Any thread may call it.

        `follow` then returns. A job that has failed keeps its reason if it ends
        within `patience_seconds`.
        """
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def stop(self) -> None:
        """Ends the job if it has not ended; at once if interrupted again."""
        try:
            self._process.terminate()
            # Closed pipes keep the launcher from waiting for a reader.
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
            grace = command_line.grace_seconds(os.environ)
            self._process.wait(grace + _STOP_SECONDS)
        except BaseException:
            self._process.kill()
            raise

    def _show_output(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        decoder = codecs.getincrementaldecoder("utf-8")
        decoders = {name: decoder("replace") for name in pipes}
        for name, data in processes.pieces(pipes):
            text = decoders[name].decode(data, final=not data)
            # Look the stream up each time, because a notebook replaces it.
            if (stream := getattr(sys, name)) is not None:
                _write(stream, text)


def _terminals() -> list[int]:
    """Returns the streams, 1 or 2, on which a line may be rewritten."""
    return [
        number
        for number, stream in ((1, sys.stdout), (2, sys.stderr))
        if _rewrites_lines(stream)
    ]


def _rewrites_lines(stream: Any) -> bool:
    if type(stream).__module__.startswith("ipykernel"):
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # the stream is None or closed
        return False


def _write(stream: Any, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()

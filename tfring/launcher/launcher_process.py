"""A job's launcher as a child process: its order, and its outcome."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfring.launcher import command_line

# How long the launcher has to end the ranks on all hosts after their grace.
_STOP_SECONDS = 15.0


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


def read_order() -> dict[str, Any]:
    """Reads this process's order, a line of JSON, from standard input.

    Bytes after the line stay unread.
    """
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)  # the parent is gone
    order: dict[str, Any] = json.loads(line)
    return order


class LauncherProcess:
    """The launcher of one job; see `placed_job`.

    It is a process of its own because a launcher takes over signals and
    orphans, which a program or a notebook needs for itself.
    """

    def __init__(
        self, order: Mapping[str, Any], descriptors: Sequence[int]
    ) -> None:
        """Starts the launcher, which inherits `descriptors`."""
        self._caller = order["caller"]
        reader, writer = os.pipe()
        self._outcome = os.fdopen(reader)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tfring.launcher.placed_job"),
                str(writer),
            ],
            env=child_environment(),
            pass_fds=[writer, *descriptors],
            # The end of its stdin tells the launcher that this process is gone.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # An interrupt reaches the launcher once: from this process.
            start_new_session=True,
        )
        os.close(writer)
        assert self._process.stdin is not None
        # If the launcher has ended already, `follow` finds no outcome.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

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
        decoder = codecs.getincrementaldecoder("utf-8")
        with selectors.DefaultSelector() as selector:
            for pipe, name in (
                (self._process.stdout, "stdout"),
                (self._process.stderr, "stderr"),
            ):
                selector.register(
                    pipe, selectors.EVENT_READ, (name, decoder("replace"))
                )
            while selector.get_map():
                for key, _ in selector.select():
                    name, decode = key.data
                    data = os.read(key.fd, 1 << 16)
                    # Look the stream up each time, because a notebook replaces
                    # it.
                    stream = getattr(sys, name)
                    if stream is not None:
                        _write(stream, decode.decode(data, final=not data))
                    if not data:
                        selector.unregister(key.fileobj)


def terminals() -> list[int]:
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

"""Runs the MPI launcher to its end and leaves no process behind."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from tfring.launcher import host_failures, processes, wrapper
from tfring.launcher.output import Marks, Screen, StreamReader, View

# If a rank fails and the launcher does not act on it by itself, all other ranks
# have this long to end and to write their output.
FAILURE_GRACE_SECONDS = 3.0
# After it has reported a failure, the launcher has this long to end.
LAUNCHER_GRACE_SECONDS = 5.0
# After a signal the launcher has this long to end the ranks on all hosts.
STOP_GRACE_SECONDS = 5.0
# After a signal the reader of the output has this long to take it.
_READER_GRACE_SECONDS = 1.0


class RunningJob:
    """One run of an MPI launcher.

    The launcher has a session of its own, so that a Ctrl-C reaches it once and
    from here. SIGINT and SIGTERM stop the job, a second one kills it at once.
    Processes that the launcher leaves behind on this machine become children of
    this one, and are killed too.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        marks: Marks,
        ranks: int,
        *,
        view: View,
        lifeline: int | None = None,
    ) -> None:
        self._command = command
        self._environment = environment
        self._marks = marks
        # A descriptor; the job ends at its end of file.
        self._lifeline = lifeline
        self.orphaned = False
        self.ranks = ranks
        self._states = wrapper.RankStates()
        self._screen = Screen(self._write, view)
        self._stop_signal: int | None = None
        self._stop_at = float("inf")
        self._kill_at = float("inf")
        self._stopping = False
        # The rank that failed first, and why; "" while no rank has failed.
        self._said = ""
        self._process: subprocess.Popen[bytes]
        self._readers: dict[int, StreamReader] = {}

    def run(self) -> int:
        """Starts it and waits for its end.

        Returns:
            The job's exit status: 0, or the status of the rank that failed
            first, 128 + n if a signal n ended that rank or this process got it;
            1 if a host was lost.
        """
        processes.adopt_orphans()
        self._process = subprocess.Popen(
            self._command,
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # If this process is killed, the job ends.
            preexec_fn=processes.end_with_parent,
        )
        with processes.stopped_by(self._on_signal):
            self._pump()
            status = self._exit_status()
            if status != 0:
                processes.kill_descendants(grace_seconds=1.0)
            return status

    def _on_signal(self, number: int) -> None:
        if self._stop_signal is None:
            self._stop_signal = number
            self._stop_at = time.monotonic()
        else:
            self._kill_at = time.monotonic()

    def _pump(self) -> None:
        """Shows the output until the launcher has ended."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        selector = selectors.DefaultSelector()
        for stream, pipe in (
            (1, self._process.stdout),
            (2, self._process.stderr),
        ):
            self._readers[stream] = StreamReader(
                stream, self._marks, self._screen, self._take_report
            )
            selector.register(pipe, selectors.EVENT_READ, stream)
        if self._lifeline is not None:
            selector.register(self._lifeline, selectors.EVENT_READ, 0)
        ended_at: float | None = None
        while self._is_open(selector) or ended_at is None:
            # No longer, as a signal does not end the wait.
            for key, _ in selector.select(0.2):
                data = os.read(key.fd, 1 << 16)
                if data and key.data:
                    self._readers[key.data].feed(data)
                elif not data:
                    selector.unregister(key.fileobj)
                    if not key.data:
                        self.orphaned = True
                        self._on_signal(signal.SIGTERM)
            now = time.monotonic()
            self._end_when_due(now)
            self._screen.tick(ending=self._stop_at < float("inf"))
            if ended_at is None and self._process.poll() is not None:
                ended_at = now
            # A process that a rank left in the background may keep them open.
            if ended_at is not None and now > ended_at + 1.0:
                break
        for reader in self._readers.values():
            reader.close()
        explained = self._stop_signal is not None or bool(self.failure())
        self._screen.close(explained=explained)

    @staticmethod
    def _is_open(selector: selectors.BaseSelector) -> bool:
        """Tells if the launcher may write more."""
        return any(key.data for key in selector.get_map().values())

    def _take_report(self, report: wrapper.Report) -> None:
        self._states.take(report)
        failure = self._states.first_failure
        if failure is not None and not self._said:
            # Now: the rank's later lines are consequences.
            self._said = wrapper.describe(
                f"rank {failure.rank}",
                failure.host,
                failure.status,
                *self._screen.last_words(failure.rank),
            )
            self._screen.failed = failure.rank

    def _end_when_due(self, now: float) -> None:
        if self._states.first_failure is not None:
            self._stop_at = min(self._stop_at, now + FAILURE_GRACE_SECONDS)
        # Open MPI 5 would wait for ever for the daemon of a host that is lost.
        if self._screen.job_failed:
            self._stop_at = min(self._stop_at, now + LAUNCHER_GRACE_SECONDS)
        if now >= self._stop_at and not self._stopping:
            self._stopping = True
            self._kill_at = min(self._kill_at, now + STOP_GRACE_SECONDS)
            self._process.send_signal(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = now + STOP_GRACE_SECONDS
            processes.kill_descendants(grace_seconds=0.0)

    def _exit_status(self) -> int:
        if self._stop_signal is not None:
            return 128 + self._stop_signal
        if self._states.first_failure is not None:
            return self._states.first_failure.status
        status = self._process.returncode
        if self._screen.job_failed and (status == 0 or self._stopping):
            # It lost a host, which Open MPI 5 takes for success; or it was
            # stopped here, which is not why the job failed.
            return 1
        return status if status >= 0 else 128 - status

    @property
    def failed_rank(self) -> int | None:
        """The rank that failed first."""
        return self._screen.failed

    def failure(self) -> str:
        """The last line of a job that failed; "" if there is nothing to say."""
        if self._stop_signal is not None:
            return ""
        if self._said:
            return self._said
        # stderr comes first: there ssh says why a host has no daemon.
        host = host_failures.describe(
            [
                *self._screen.launcher_lines[2],
                *self._screen.launcher_lines[1],
            ],
            under_way=any(r.heard_ranks for r in self._readers.values()),
        )
        return "" if host is None else f"tfringrun: {host}"

    def _write(self, stream: int, data: bytes) -> None:
        """Writes, and ends the job when that is due while nobody reads.

        Without a thread: when a process with threads is killed, each of them
        sends the signal of `end_with_parent`, and Open MPI gives up its ranks
        at the second one.
        """
        view = memoryview(data)
        try:
            while view:
                overdue = self._stop_signal is not None and (
                    time.monotonic() > self._stop_at + _READER_GRACE_SECONDS
                )
                wait_seconds = 0.0 if overdue else 0.2
                _, writable, _ = select.select([], [stream], [], wait_seconds)
                if writable:
                    # A pipe that can be written to takes so much.
                    view = view[os.write(stream, view[: select.PIPE_BUF]) :]
                elif overdue:
                    return
                else:
                    self._end_when_due(time.monotonic())
        except OSError:  # Nobody reads any more: `tfringrun ... | head`.
            if self._stop_signal is None:
                self._stop_signal = signal.SIGPIPE
                self._stop_at = time.monotonic()

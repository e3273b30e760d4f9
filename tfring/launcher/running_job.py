"""Runs the MPI launcher to its end and leaves no process behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from tfring.launcher import host_failures, processes, wrapper
from tfring.launcher.held import HeldLines
from tfring.launcher.output import Marks, Screen, StreamReader, View

# After a rank's failure that the launcher does not act on by itself, the others
# have this long to end and to say what they have to say.
FAILURE_GRACE_SECONDS = 3.0
# After its own news of a failure the launcher has this long to end.
LAUNCHER_GRACE_SECONDS = 5.0
# After a signal the launcher has this long to end the ranks on all hosts.
STOP_GRACE_SECONDS = 5.0


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
        # A descriptor; the job ends when it comes to its end.
        self._lifeline = lifeline
        self.orphaned = False
        self.ranks = ranks
        self._states = wrapper.RankStates()
        self._screen = Screen(self._write, view)
        self._held = HeldLines(self._screen.show_lines, verbose=view.verbose)
        # The last words of the rank that failed first.
        self._exception = ""
        self._last_line = ""
        self._stop_signal: int | None = None
        self._stop_at = float("inf")
        self._kill_at = float("inf")
        self._stopping = False
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
                stream, self._marks, self._screen, self._held
            )
            selector.register(pipe, selectors.EVENT_READ, stream)
        if self._lifeline is not None:
            selector.register(self._lifeline, selectors.EVENT_READ, 0)
        ended_at: float | None = None
        while self._is_open(selector) or ended_at is None:
            for key, _ in selector.select(self._next_tick()):
                data = os.read(key.fd, 1 << 16)
                if data and key.data:
                    self._readers[key.data].feed(data)
                elif not data:
                    selector.unregister(key.fileobj)
                    if not key.data:
                        self.orphaned = True
                        self._on_signal(signal.SIGTERM)
            now = time.monotonic()
            self._take_reports()
            self._end_when_due(now)
            if ended_at is None and self._process.poll() is not None:
                ended_at = now
            # A process that a rank left in the background may keep them open.
            if ended_at is not None and now > ended_at + 1.0:
                break
        for reader in self._readers.values():
            reader.close()
        self._take_reports()
        explained = self._stop_signal is not None or bool(self.failure())
        self._held.close(explained=explained)
        self._screen.close()

    @staticmethod
    def _is_open(selector: selectors.BaseSelector) -> bool:
        """Tells if the launcher may write more."""
        return any(key.data for key in selector.get_map().values())

    def _next_tick(self) -> float:
        ticks = [reader.tick() for reader in self._readers.values()]
        ticks.append(self._held.tick())
        due = [max(0.01, tick) for tick in ticks if tick is not None]
        # No longer, as a signal does not end the wait.
        return min([0.2, *due])

    def _take_reports(self) -> None:
        for reader in self._readers.values():
            for report in reader.reports:
                before = self._states.first_failure
                self._states.take(report)
                failure = self._states.first_failure
                if failure is not before and failure is not None:
                    self._note_failure(failure.rank)
            reader.reports.clear()

    def _note_failure(self, rank: int) -> None:
        # They are taken now: later lines are of what came of it.
        line = self._readers[2].last_lines.get(rank, b"")
        self._last_line = line.decode(errors="replace")
        self._exception = self._held.exception(rank)
        self._held.heed_failure(rank)

    def _end_when_due(self, now: float) -> None:
        if self._states.first_failure is not None:
            self._stop_at = min(self._stop_at, now + FAILURE_GRACE_SECONDS)
        # Open MPI 5 would wait for ever for the daemon of a host that is lost.
        if self._job_failed():
            self._held.expect_failure()
            self._stop_at = min(self._stop_at, now + LAUNCHER_GRACE_SECONDS)
        if now >= self._stop_at and not self._stopping:
            self._stopping = True
            self._kill_at = min(self._kill_at, now + STOP_GRACE_SECONDS)
            self._process.send_signal(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = now + STOP_GRACE_SECONDS
            processes.kill_descendants(grace_seconds=0.0)

    def _job_failed(self) -> bool:
        return any(reader.job_failed for reader in self._readers.values())

    def _exit_status(self) -> int:
        if self._stop_signal is not None:
            return 128 + self._stop_signal
        if self._states.first_failure is not None:
            return self._states.first_failure.status
        status = self._process.returncode
        if self._job_failed() and (status == 0 or self._stopping):
            # It lost a host, which Open MPI 5 takes for success; or it was
            # stopped here, which is not why the job failed.
            return 1
        return status if status >= 0 else 128 - status

    @property
    def failed_rank(self) -> int | None:
        """The rank that failed first."""
        failure = self._states.first_failure
        return None if failure is None else failure.rank

    def failure(self) -> str:
        """The last line of a job that failed; "" if there is nothing to say."""
        if self._stop_signal is not None:
            return ""
        if self._states.first_failure is not None:
            return wrapper.describe(
                self._states.first_failure, self._exception, self._last_line
            )
        # stderr comes first: there ssh says why a host has no daemon.
        host = host_failures.describe(
            [
                *self._readers[2].launcher_lines,
                *self._readers[1].launcher_lines,
            ],
            under_way=any(r.heard_ranks for r in self._readers.values()),
        )
        return "" if host is None else f"tfringrun: {host}"

    def _write(self, stream: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(stream, view) :]
        except OSError:  # Nobody reads any more: `tfringrun ... | head`.
            if self._stop_signal is None:
                self._stop_signal = signal.SIGPIPE
                self._stop_at = time.monotonic()

"""Runs the MPI launcher to its end and leaves no process behind."""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from tfring.launcher import ending, host_failures, processes, wrapper
from tfring.launcher.mpi_launchers import MpiLauncher, marks
from tfring.launcher.output import Screen, StreamReader, View
from tfring.launcher.stages import STAGE_OF_REPORT, Stage, Stages


class RunningJob:
    """One run of an MPI launcher.

    The MPI launcher has a session of its own, so that a Ctrl-C reaches it only
    through this process. The ranks get SIGUSR1 and SIGUSR2. They also get
    SIGINT and SIGTERM, and have a grace to end in; a second SIGINT or SIGTERM
    ends the job at once. This process adopts, and kills, what the launcher
    leaves behind on this machine.
    """

    def __init__(
        self,
        launcher: MpiLauncher,
        command: Sequence[str],
        environment: Mapping[str, str],
        ranks: int,
        *,
        view: View,
        stages: Stages,
        grace_seconds: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """Prepares the run.

        `command` and `environment` are the launcher's. `meanwhile` is called
        while it starts the ranks.
        """
        self._launcher = launcher
        self._command = command
        self._environment = environment
        self._meanwhile = meanwhile
        self._states = wrapper.RankStates()
        self._ending = ending.Ending(self._states, ranks, grace_seconds)
        # Signals to this process that `_act` has yet to handle.
        self._signals: list[int] = []
        self._view = view
        self._stages = stages
        self._screen = Screen(self._write, view)
        self._notices: list[str] = []
        # The last line of a failed job: which rank failed first and why, or why
        # the output cannot be written.
        self._said = ""
        self._process: subprocess.Popen[bytes]
        # Readable once a signal has come or the launcher has ended.
        self._wake: int
        self._readers: dict[int, StreamReader] = {}

    def run(self) -> int:
        """Starts the launcher and waits for its end.

        Returns:
            The job's exit status: 0, or the status of the rank that failed
            first, 128 + n if signal n ended that rank; 1 if a host was lost.
            After signal n to this process: 128 + n, or the one status with
            which all ranks have ended by themselves.
        """
        processes.adopt_orphans()
        self._wake = processes.open_wake_pipe()
        with processes.signals_to(self._signals.append):
            self._process = subprocess.Popen(
                self._command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # The job ends if this process is killed.
                preexec_fn=processes.end_with_parent,
            )
            self._stages.reach(Stage.PREPARED)
            if self._meanwhile is not None:
                self._meanwhile()
            self._pump()
            self._stages.reach(Stage.OVER)
            if self._view.verbose:
                for line in self._stages.lines():
                    self._screen.say(line)
            status = self._ending.status(
                self._process.returncode,
                launcher_failed=self._screen.job_failed,
            )
            if status != 0:
                processes.kill_descendants(grace_seconds=1.0)
            return status

    def _pump(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        selector = selectors.DefaultSelector()
        for stream, pipe in (
            (1, self._process.stdout),
            (2, self._process.stderr),
        ):
            self._readers[stream] = StreamReader(
                stream, marks(self._launcher), self._screen, self._take_report
            )
            selector.register(pipe, selectors.EVENT_READ, stream)
        selector.register(self._wake, selectors.EVENT_READ, 0)
        ended_at: float | None = None
        watched = selector.get_map().values()
        # `data` is the stream of a pipe, and 0 for other descriptors.
        while ended_at is None or any(key.data for key in watched):
            # Wake up to show held lines, and to end a grace.
            for key, _ in selector.select(0.2):
                data = os.read(key.fd, 1 << 16)
                if data and key.data:
                    self._readers[key.data].feed(data)
                elif not data:
                    selector.unregister(key.fileobj)
            now = time.monotonic()
            self._act(now)
            for notice in self._notices:
                self._screen.show(2, None, notice.encode())
            self._notices.clear()
            self._screen.tick(ending=self._ending.is_soon())
            if ended_at is None and self._process.poll() is not None:
                ended_at = now
            # A background process of a rank may keep the pipes open.
            if ended_at is not None and now > ended_at + 1.0:
                break
        for reader in self._readers.values():
            reader.close()
        explained = self._ending.is_by_request() or bool(self.failure())
        self._screen.close(explained=explained)

    def _take_report(self, report: wrapper.Report) -> None:
        self._states.take(report)
        if (stage := STAGE_OF_REPORT.get(report.word)) is not None:
            self._stages.reach(stage)
        failure = self._states.first_failure
        if failure is not None and not self._said:
            # Describe the failure now, because the rank's later lines are
            # consequences.
            self._said = wrapper.describe(
                f"rank {failure.rank}",
                failure.host,
                failure.status,
                *self._screen.last_words(failure.rank),
            )
            self._screen.failed = failure.rank

    def _act(self, now: float) -> None:
        while self._signals:
            if notice := self._ending.take_signal(self._signals.pop(0), now):
                self._notices.append(notice)
        for number in self._ending.signals_for_ranks():
            self._process.send_signal(self._launcher.carriers[number])
        if self._ending.is_stop_due(
            now, launcher_failed=self._screen.job_failed
        ):
            self._process.send_signal(signal.SIGTERM)
        if self._ending.is_kill_due(now):
            processes.kill_descendants(grace_seconds=0.0)

    def failure(self) -> str:
        """Returns why the job has failed, in a line; "" if it has not."""
        if self._ending.is_by_request():
            return ""
        if self._said:
            return self._said
        # stderr comes first, because ssh says there why it has not reached a
        # host.
        host = host_failures.describe(
            [
                *self._screen.launcher_lines[2],
                *self._screen.launcher_lines[1],
            ],
            under_way=any(r.heard_ranks for r in self._readers.values()),
        )
        if host is not None:
            return host
        return self._launchers_end()

    def _launchers_end(self) -> str:
        """Returns how the MPI launcher has failed, unless it has said so."""
        status = self._process.returncode
        silent = not any(self._screen.launcher_lines.values())
        if status == 0 or self._ending.is_soon() or (status > 0 and not silent):
            return ""
        how = wrapper.killed_by(128 - status) or f"exit status {status}"
        return f"{self._command[0]} has failed: {how}."

    def _write(self, stream: int, data: bytes) -> None:
        """Writes output, and ends the job if that is due meanwhile.

        It uses no thread: when a process with threads is killed, each thread
        sends the signal of `end_with_parent`, and at the second signal Open MPI
        abandons its ranks.
        """
        view = memoryview(data)
        try:
            while view:
                is_late = self._ending.is_reader_late(time.monotonic())
                wait_seconds = 0.0 if is_late else 0.2
                _, writable, _ = select.select([], [stream], [], wait_seconds)
                if writable:
                    # A writable pipe takes this much without blocking.
                    view = view[os.write(stream, view[: select.PIPE_BUF]) :]
                elif is_late:
                    return
                else:
                    self._act(time.monotonic())
        except OSError as error:
            self._take_write_error(stream, error)

    def _take_write_error(self, stream: int, error: OSError) -> None:
        if error.errno == errno.EIO and stream in self._view.terminals:
            self._signals.append(signal.SIGHUP)  # the terminal was closed
            return
        self._ending.take_write_error(error, time.monotonic())
        if not isinstance(error, BrokenPipeError) and not self._said:
            self._said = ending.describe_write_error(stream, error)

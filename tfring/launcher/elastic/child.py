"""Programs beside the training, which the launcher does not wait for.

The launcher's loop serves all workers, so it must not wait for a name server, a
file system or a program that may hang. A thread for each program prepares it,
starts it, reads its output and waits for its end. No method of `Child` waits.
"""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import threading
from collections.abc import Callable, Sequence

from tfring.launcher import processes

# How often a thread checks whether its program has ended. The end of the pipe
# tells that sooner, unless another process holds the pipe open.
_LOOK_MS = 1000
_READ_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Program:
    """A program for a child to run.

    Attributes:
        command: The program and its arguments.
        configuration: Bytes for the standard input, which then stays open; None
            for no standard input.
        reads: "stdout", while stderr is the launcher's; or "stderr", while
            stdout is discarded.
    """

    command: Sequence[str]
    configuration: bytes | None = None
    reads: str = "stdout"


class Child:
    """A program, and the thread that runs it.

    Attributes:
        is_over: The program has ended, or it could not be started.
        error: Why the program could not be started; "" otherwise.
        status: The exit status; -n if signal n has ended the program.
        is_killed: `kill` has been called.
        text: The last `most_bytes` bytes that the program has written to the
            stream.
        text_bytes: How many bytes the program has written to the stream in all.
    """

    def __init__(
        self, prepare: Callable[[], Program | None], most_bytes: int
    ) -> None:
        """Starts the program that `prepare` returns; None starts none.

        `prepare` is called in the thread; an exception that it raises becomes
        the `error`.
        """
        self._prepare = prepare
        self._most_bytes = most_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self.is_killed = False
        # Guards `_process`: a signal must not reach a later process with the
        # same number.
        self._lock = threading.Lock()
        self.is_over = False
        self.error = ""
        self.status: int | None = None
        self.text = b""
        self.text_bytes = 0
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError as error:  # The limit of processes is reached.
            self.error = str(error)
            self.is_over = True

    def kill(self) -> None:
        """Kills the program and its process group, also if it starts later."""
        self.is_killed = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None:
                processes.kill_group(self._process.pid)

    def _run(self) -> None:
        try:
            program = self._prepare()
            if program is not None:
                process = self._start(program)
                self._read(process, program.configuration or b"")
                self._reap(process)
        except Exception as error:  # the launcher goes on after any error
            self.error = str(error) or repr(error)
            self._kill()
        self.is_over = True

    def _start(self, program: Program) -> subprocess.Popen[bytes]:
        has_input = program.configuration is not None
        reads_output = program.reads == "stdout"
        process = subprocess.Popen(
            program.command,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE if reads_output else subprocess.DEVNULL,
            stderr=None if reads_output else subprocess.PIPE,
            start_new_session=True,
            # For the kernel this thread is the parent, and it lives as long as
            # the program.
            preexec_fn=processes.end_with_parent,
        )
        with self._lock:
            self._process = process
        if self.is_killed:
            self._kill()
        return process

    def _read(self, process: subprocess.Popen[bytes], unwritten: bytes) -> None:
        """Writes the configuration, and reads the output to the end."""
        pipe = process.stdout or process.stderr
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        is_open = {pipe.fileno()}
        if unwritten:
            assert process.stdin is not None
            os.set_blocking(process.stdin.fileno(), False)
            poll.register(process.stdin, select.POLLOUT)
            is_open.add(process.stdin.fileno())
        has_ended = False
        while not has_ended:
            # Check before the read, which then finds all that the program has
            # written.
            has_ended = _has_ended(process.pid, is_awaited=not is_open)
            for fd, _ in poll.poll(0 if has_ended else _LOOK_MS):
                if fd == pipe.fileno():
                    data = os.read(fd, _READ_BYTES)
                    self.text_bytes += len(data)
                    self.text = (self.text + data)[-self._most_bytes :]
                    is_done = not data
                else:
                    unwritten = _write(fd, unwritten)
                    is_done = not unwritten
                if is_done:
                    poll.unregister(fd)
                    is_open.remove(fd)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Takes the exit status, and kills the rest of the process group."""
        with self._lock:
            processes.kill_group(process.pid)
            self.status = process.wait()
            self._process = None
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _has_ended(pid: int, *, is_awaited: bool) -> bool:
    flags = os.WEXITED | os.WNOWAIT | (0 if is_awaited else os.WNOHANG)
    return os.waitid(os.P_PID, pid, flags) is not None


def _write(descriptor: int, data: bytes) -> bytes:
    """Writes what the pipe takes without waiting; returns the rest."""
    try:
        return data[os.write(descriptor, data) :]
    except BlockingIOError:
        return data
    except OSError:  # Nobody reads it any more.
        return b""

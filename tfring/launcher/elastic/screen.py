"""Shows the output of an elastic job's workers, each line with its rank.

`[2] ` is the rank that the worker has at the time; one that has had none yet
has its name there, `[w5] `.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from tfring.launcher.output import Screen, View

# More than that waits where it was written.
_WAITING_BYTES = 1 << 20
# The rest of the output has this long when the job has been stopped.
_LAST_SECONDS = 1.0


class Writer:
    """Writes to this process's streams, in a thread of its own.

    Their reader may stop, as a pager does, and the rendezvous must continue.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = (
            queue.SimpleQueue()
        )
        # Each is counted by one thread alone.
        self._taken_bytes = self._written_bytes = 0
        # By stream: why it cannot be written any more.
        self.errors: dict[int, OSError] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, stream: int, data: bytes) -> None:
        """Writes to descriptor 1 or 2, soon."""
        self._taken_bytes += len(data)
        self._queue.put((stream, data))

    def is_full(self) -> bool:
        """Returns True if there is too much to write."""
        return self._taken_bytes - self._written_bytes > _WAITING_BYTES

    def close(self, is_stopped: Callable[[], bool]) -> None:
        """Waits until all is written, or for a second once it is stopped."""
        self._queue.put(None)
        while self._thread.is_alive() and not is_stopped():
            self._thread.join(0.2)
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            stream, data = item
            rest = memoryview(data)
            try:
                while rest and stream not in self.errors:
                    rest = rest[os.write(stream, rest) :]
            except OSError as error:
                self.errors[stream] = error
            self._written_bytes += len(data)


class JobScreen(Screen):
    """The output of all workers, by their numbers."""

    def __init__(self, view: View) -> None:
        self.writer = Writer()
        # The prefix of a worker's lines, if it is not its name.
        self.prefixes: dict[int, str] = {}
        super().__init__(
            self.writer.write,
            view,
            lambda worker: self.prefixes.get(worker, f"w{worker}"),
        )

    def end(self, text: str, is_stopped: Callable[[], bool]) -> None:
        """Shows the job's last lines, if any, and waits for all output."""
        for line in text.splitlines():
            self.say(line)
        self.writer.close(is_stopped)

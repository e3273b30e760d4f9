"""Shows the output of an elastic job's workers, each line with its rank.

The prefix `[2] ` is the present rank of the worker. A worker that has had no
rank yet has its name there: `[w5] `. A view that shows hosts has `[2 node7] `.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from tfring.launcher.output import Screen, View

# With more bytes than this to write, the launcher stops reading output.
_WAITING_BYTES = 1 << 20
# How long the last output may take once the job has been stopped.
_LAST_SECONDS = 1.0


class Writer:
    """Writes to the standard streams, in a thread of its own.

    The reader of a stream may stop reading, as a pager does, and must not block
    the rendezvous.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = (
            queue.SimpleQueue()
        )
        # Each of these counters is written by one thread only.
        self._taken_bytes = self._written_bytes = 0
        # The error of each stream that cannot be written any more.
        self.errors: dict[int, OSError] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, stream: int, data: bytes) -> None:
        """Queues data for descriptor 1 or 2."""
        self._taken_bytes += len(data)
        self._queue.put((stream, data))

    def is_full(self) -> bool:
        """Returns True if there is too much to write."""
        return self._taken_bytes - self._written_bytes > _WAITING_BYTES

    def close(self, is_stopped: Callable[[], bool]) -> None:
        """Waits until all is written; for a second once the job is stopped."""
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
        # The rank that is shown for a worker; its name is shown without one.
        self.prefixes: dict[int, str] = {}
        # The host of each worker.
        self.hosts: dict[int, str] = {}
        super().__init__(self.writer.write, view)

    def _name(self, worker: int) -> str:
        return self.prefixes.get(worker, f"w{worker}")

    def _prefix(self, worker: int) -> str:
        if not self._view.shows_hosts:
            return super()._prefix(worker)
        return f"[{self._name(worker)} {self.hosts[worker]}] "

    def end(self, text: str, is_stopped: Callable[[], bool]) -> None:
        """Shows the job's last lines, if any, and waits for all output."""
        for line in text.splitlines():
            self.say(line)
        self.writer.close(is_stopped)

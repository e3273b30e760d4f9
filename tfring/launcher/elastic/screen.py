"""Shows the output of an elastic job's workers, each line with its rank.

`[2] ` is the rank that the worker has at the time; one that has had none yet
has its name there, `[w5] `.
"""

from __future__ import annotations

from collections.abc import Callable

from tfring.launcher.output import Screen, View
from tfring.launcher.writer import Writer


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

    def say(self, text: str) -> None:
        """Shows a line of the launcher's own."""
        self.show(2, None, f"tfringrun: {text}".encode(errors="replace"))

    def end(self, line: str, is_stopped: Callable[[], bool]) -> None:
        """Shows the job's last line, if there is one, and waits for it all."""
        if line:
            data = f"{line}\n".encode(errors="replace")
            self.writer.write(2, data)
        self.writer.close(is_stopped)

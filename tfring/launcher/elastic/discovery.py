"""The hosts that a user's script finds: `host:slots` lines, each second."""

from __future__ import annotations

from tfring.launcher import hosts as hosts_lib
from tfring.launcher.elastic.child import Child, Program

# The time between two runs of the script, as in Horovod.
INTERVAL_SECONDS = 1.0
# A script that runs longer than this is killed, and started again.
LONGEST_SECONDS = 60.0
# A script that prints more than this is killed: it is in a loop.
LONGEST_BYTES = 1 << 20


class Discovery:
    """Runs the script again and again, and never waits for it."""

    def __init__(self, script: str) -> None:
        """Takes the path of a program without arguments."""
        self._script = script
        self._child: Child | None = None
        # The time at which a running script is killed, or the next run starts.
        self._due = 0.0
        # The last error.
        self.error = ""

    def poll(self, now: float) -> dict[str, int] | None:
        """Returns the slots by host if the script has just ended, else None.

        If the script fails, it returns None, and `error` says how.
        """
        child = self._child
        if child is None:
            if now >= self._due:
                self._due = now + LONGEST_SECONDS
                program = Program([self._script])
                self._child = Child(lambda: program, LONGEST_BYTES)
            return None
        if child.text_bytes > LONGEST_BYTES:
            self.error = f"it printed more than {LONGEST_BYTES >> 20} MiB"
            child.kill()
        elif not child.is_over and now >= self._due:
            self.error = f"it did not end in {LONGEST_SECONDS:g} s"
            child.kill()
        # The next run waits for the end of a killed script.
        if not child.is_over:
            return None
        self._child = None
        self._due = now + INTERVAL_SECONDS
        return None if child.is_killed else self._result(child)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _result(self, child: Child) -> dict[str, int] | None:
        self.error = child.error
        if child.status not in (None, 0):
            self.error = f"it ended with status {child.status}"
        if self.error:
            return None
        try:
            return parse(child.text.decode(errors="replace"))
        except ValueError as error:
            self.error = str(error).removesuffix(".")
        return None


def parse(text: str) -> dict[str, int]:
    """Reads a script's output.

    Raises:
        ValueError: A line is not of the form `node1:4`, or a host is there
            twice.
    """
    slots: dict[str, int] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        host = hosts_lib.parse_host(line.strip())
        if host.name in slots:
            raise ValueError(f"host {host.name} is there twice.")
        slots[host.name] = host.slots
    return slots

"""Which workers are silent, by a clock that stands still when this one does."""

from __future__ import annotations

# The longest that the clock moves from one look to the next. If this process
# does not run, or is busy, no worker's pulse is late.
LONGEST_STEP_SECONDS = 0.25


class Pulses:
    """When each worker was heard last."""

    def __init__(self, silence_seconds: float) -> None:
        """Judges a worker to be silent after so long; 0 is never."""
        self._silence_seconds = silence_seconds
        self._looked: float | None = None
        self._clock = 0.0
        self._heard: dict[str, float] = {}

    def beat(self, name: str) -> None:
        """Takes note that a worker was heard just now."""
        self._heard[name] = self._clock

    def forget(self, name: str) -> None:
        """Expects no more of a worker."""
        self._heard.pop(name, None)

    def silent(self, now: float) -> list[str]:
        """Returns who is silent; call it often, after what has come is read.

        Args:
            now: A time that does not go back.
        """
        if self._looked is not None:
            self._clock += min(now - self._looked, LONGEST_STEP_SECONDS)
        self._looked = now
        if self._silence_seconds == 0:
            return []
        return [
            name
            for name, heard in self._heard.items()
            if self._clock - heard >= self._silence_seconds
        ]

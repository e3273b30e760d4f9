"""Waits for what happens in another thread or process."""

import time


def wait_until(condition, seconds=60):
    """Returns the condition's result when it is true; longer is a hang."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found

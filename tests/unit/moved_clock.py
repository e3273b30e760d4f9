"""A clock that a test moves."""


class Clock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now

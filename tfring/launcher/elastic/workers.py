"""The data of an elastic job's rules: limits, workers and actions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a job: numbers of workers, and times in seconds."""

    # The fewest members of a generation.
    minimum: int
    # The most members of a generation. One more is allowed while it takes over
    # another's state. None: one per slot, spares not counted.
    maximum: int | None = None
    # How many workers the first generation waits for; None: for all.
    first: int | None = None
    # How many more workers wait to take a lost one's place.
    spares: int = 0
    # How long there may be no generation. Also how long a new worker may take
    # to join, and then to build its model while the others train.
    replacement_seconds: float = 600.0
    # How long a member may take to leave a generation.
    ready_seconds: float = 30.0
    # How long ranks wait in the first `tfring.init` for one that has a place,
    # in a job that replaces no worker.
    init_seconds: float = 600.0
    # More hosts may join the job.
    may_grow: bool = False
    # Lost workers are replaced. Otherwise the job has `minimum` workers from
    # its start, and the first loss ends it: see `fixed_membership`.
    replaces: bool = True


@dataclasses.dataclass(frozen=True)
class Send:
    """An action: send a message to each peer that is connected."""

    role: str  # "worker", or "supervisor"
    names: tuple[str, ...]  # the workers, or the supervisors' hosts
    message: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Say:
    """An action: show the user a line."""

    text: str


@dataclasses.dataclass(frozen=True)
class State:
    """The state that all workers must have alike."""

    run: int  # in which function of `tfring.elastic.run`
    parts: Sequence[Sequence[str]]  # each part, and its name, which may differ

    def difference_from(self, others: State) -> str:
        """Says how it differs from the members' state; "" if it does not."""
        if self.run != others.run:
            return ""  # they cannot be compared
        for own, other in itertools.zip_longest(
            self.parts, others.parts, fillvalue=("nothing", "")
        ):
            if own[0] != other[0]:
                return (
                    f"its state has {' '.join(own).strip()} where the members' "
                    f"has {' '.join(other).strip()}. Its host may have an "
                    "older script, or an older file for it"
                )
        return ""


@dataclasses.dataclass(eq=False)
class Worker:
    """A worker, from its start to its loss or its end."""

    name: str
    number: int
    host: str  # its supervisor's name
    started: float
    node: str  # workers with the same one share memory
    ready: bool = False  # the worker waits for a place
    steps: int = -1  # commits in its state when it was last ready; -1: none
    building: bool = False  # it had no model when it was last ready
    due: float = math.inf  # the time limit for what it was told to do
    overdue: str = ""  # why it is lost at that time
    generation: int = 0  # the last generation that it was told to form
    rank: int | None = None  # its rank in that generation
    formed: bool = False  # it has all connections of that generation
    address: Sequence[str | int] = ("", 0)  # where it listens for other workers
    # The workers that a probe has reached, in both directions.
    reached: set[str] = dataclasses.field(default_factory=set)
    connected: bool = False  # it was in a generation that was connected
    state: State | None = None  # the parts of its state, as it has told
    proven: bool = False  # it has trained for a while
    run: int = 0  # how many functions of `tfring.elastic.run` it has begun
    training: bool = False  # it is in a function of `tfring.elastic.run`
    trained: bool = False  # all ranks have reached the end of that function
    done: bool = False  # it ends by itself, after the training
    leaving: bool = False  # it was asked to end
    silence: str = ""  # why it seems to hang, between two functions
    error: str = ""  # the exception that ends it, as it has told
    why: str = ""  # why it was lost
    told: bool = False  # the user has been told
    announced: int | None = None  # the exit status that it has announced
    status: int | None = None  # 128 + n for signal n; None until its end

    @property
    def is_over(self) -> bool:
        """True once worker and members do not need each other."""
        return self.trained or self.done

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"worker {self.name} ({rank}host {self.host})"


class Actions:
    """Collects actions until `take` returns them."""

    def __init__(self) -> None:
        self._actions: list[Send | Say] = []

    def take(self) -> list[Send | Say]:
        """Returns the actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def send(self, to: Iterable[Worker], kind: str, **more: Any) -> None:
        """Sends workers a message."""
        names = tuple(worker.name for worker in to)
        self._actions.append(Send("worker", names, {"kind": kind, **more}))

    def order(self, worker: Worker, kind: str, **more: Any) -> None:
        """Gives a worker's supervisor an order for it."""
        self.tell(worker.host, kind, worker=worker.name, **more)

    def tell(self, host: str, kind: str, **more: Any) -> None:
        """Gives the supervisor of a host an order."""
        message = {"kind": kind, **more}
        self._actions.append(Send("supervisor", (host,), message))

    def say(self, text: str) -> None:
        """Shows the user a line."""
        self._actions.append(Say(text))

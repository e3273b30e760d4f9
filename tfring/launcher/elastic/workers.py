"""The terms of an elastic job's rules: limits, workers and actions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Limits:
    """The numbers of workers, and the seconds, of a job."""

    # No generation has fewer members.
    minimum: int
    # None has more, but for two where one takes over the other's state; None is
    # one for each slot, but for spares.
    maximum: int | None = None
    # The first generation waits for so many; None is for all.
    first: int | None = None
    # So many workers more wait for a place.
    spares: int = 0
    # How long there may be no generation at all; and how long a new worker may
    # take to join, and then to build what it trains while the others train.
    replacement_seconds: float = 600.0
    # How long a member may take to leave a generation.
    ready_seconds: float = 30.0
    # How long ranks may wait in the first `tfring.init` for one that has a
    # place, in a job that replaces none.
    init_seconds: float = 600.0
    # More hosts may join.
    may_grow: bool = False
    # Lost workers are replaced. If not, the first loss ends the job, which has
    # `minimum` workers from its start on: see `fixed_membership`.
    replaces: bool = True


@dataclasses.dataclass(frozen=True)
class Send:
    """Send a message to each of these, if it can be reached."""

    role: str  # "worker", or "supervisor"
    names: tuple[str, ...]  # the workers, or the supervisors' hosts
    message: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Say:
    """Tell the user something."""

    text: str


@dataclasses.dataclass(frozen=True)
class State:
    """The state that all workers must have alike."""

    run: int  # in which function of `tfring.elastic.run`
    parts: Sequence[Sequence[str]]  # each part, and its name, which may differ

    def difference_from(self, others: State) -> str:
        """Says where it differs from the members' state; "" if it does not."""
        if self.run != others.run:
            return ""  # Nobody knows.
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
    ready: bool = False  # it waits for a place
    steps: int = -1  # how many commits were in its state when last ready
    building: bool = False  # it had yet to build what it trains then
    due: float = math.inf  # when it must have done what it was told to do
    overdue: str = ""  # what it did not do if it has not by then
    generation: int = 0  # the last one that it was told to form
    rank: int | None = None  # in the last one
    formed: bool = False  # it has all connections of that one
    address: Sequence[str | int] = ("", 0)  # where it listens to the others
    # The workers that it can connect to, and they to it.
    reached: set[str] = dataclasses.field(default_factory=set)
    connected: bool = False  # it has been in a generation that was connected
    state: State | None = None  # the parts of its state, as it said itself
    proven: bool = False  # it has trained for a while
    run: int = 0  # how many functions of `tfring.elastic.run` it has begun
    training: bool = False  # it is in one
    trained: bool = False  # all ranks have come to the end of that function
    done: bool = False  # it ends of its own will, after the training
    leaving: bool = False  # it was asked to end
    silence: str = ""  # why it seems to hang, between two functions
    error: str = ""  # the exception that ends it, as it said itself
    why: str = ""  # how it was lost
    told: bool = False  # the user has been told
    announced: int | None = None  # the status with which it said that it ends
    status: int | None = None  # 128 + n if signal n ended it; None before

    @property
    def is_over(self) -> bool:
        """True once the members need it no more, nor it them."""
        return self.trained or self.done

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"worker {self.name} ({rank}host {self.host})"


class Actions:
    """Collects the actions that are to be done."""

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
        """Tells the user something."""
        self._actions.append(Say(text))

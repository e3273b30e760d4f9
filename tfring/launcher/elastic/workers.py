"""What the rules of an elastic job speak of: limits, workers and actions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Limits:
    """The numbers of workers, and the seconds, of a job.

    Attributes:
        minimum: No generation has fewer members.
        maximum: None has more; None is one for each slot, but for spares.
        first: The first generation waits for so many; None is for all.
        spares: So many workers more wait for a place.
        replacement_seconds: How long there may be no generation at all; and how
            long a new worker may take to join, and then to build what it trains
            while the others train.
        ready_seconds: How long a member may take to leave a generation.
        may_grow: More hosts may come.
    """

    minimum: int
    maximum: int | None = None
    first: int | None = None
    spares: int = 0
    replacement_seconds: float = 600.0
    ready_seconds: float = 30.0
    may_grow: bool = False


@dataclasses.dataclass(frozen=True)
class Send:
    """Send a message to each of these, if it can be reached.

    Attributes:
        role: "worker", or "supervisor".
        names: The workers, or the supervisors' hosts.
    """

    role: str
    names: tuple[str, ...]
    message: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Say:
    """Tell the user something."""

    text: str


Action = Send | Say


@dataclasses.dataclass(frozen=True)
class State:
    """What all workers must have alike.

    Attributes:
        run: In which function of `tfring.elastic.run`.
        parts: Each part, and its name, which may differ.
    """

    run: int
    parts: Sequence[Sequence[str]]

    def difference_from(self, others: State) -> str:
        """Tells where it differs from the others' state; "" if it does not."""
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
    """A worker, from its start to its loss or its end.

    Attributes:
        ready: It waits for a place.
        steps: How many commits were in its state when it was last ready.
        building: It had yet to build what it trains then.
        generation: The last one that it was told to form.
        due: When it must have done what it was told to do.
        overdue: What it did not do if it has not by then.
        address: Where it listens to the others.
        reached: The workers that it can connect to, and they to it.
        connected: It has been in a generation that was connected.
        state: The parts of its state, as it said itself.
        proven: It has trained for a while.
        run: How many functions of `tfring.elastic.run` it has begun.
        training: It is in one.
        trained: All ranks have come to the end of that function.
        done: It has said that it ends of its own will, after the training.
        error: The exception that ends it, as it said itself.
        why: How it was lost.
        told: The user has been told.
        status: Its exit status, 128 + n if signal n ended it; None before.
    """

    name: str
    number: int
    host: str
    started: float
    ready: bool = False
    steps: int = -1
    building: bool = False
    due: float = math.inf
    overdue: str = ""
    generation: int = 0
    rank: int | None = None
    formed: bool = False
    address: Sequence[str | int] = ("", 0)
    reached: set[str] = dataclasses.field(default_factory=set)
    connected: bool = False
    state: State | None = None
    proven: bool = False
    run: int = 0
    training: bool = False
    trained: bool = False
    done: bool = False
    error: str = ""
    why: str = ""
    told: bool = False
    status: int | None = None

    @property
    def is_over(self) -> bool:
        """Tells if the others need it no more, nor it them."""
        return self.trained or self.done

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"worker {self.name} ({rank}host {self.host})"

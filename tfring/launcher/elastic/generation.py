"""The generation of an elastic job: its members, and its phase.

A *generation* is a set of workers that train together, its *members*; there is
one at a time. The first loss stops it. All remaining members must say that they
have left it (`ready`) before the next one is formed, so no worker is ever in
two.

| phase    | ends when                                | time limits          |
|----------|------------------------------------------|----------------------|
| STOPPED  | the members and enough workers are ready | ready, replacement   |
| FORMING  | all members are connected, or one is lost| forming              |
| TRAINING | a member is lost, or leaves at a commit  |                      |
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence

from tfring.launcher.elastic.accusations import Accusation
from tfring.launcher.elastic.workers import Actions, Worker

# How long all members may take to connect to one another.
FORMING_SECONDS = 60.0
# How long to collect accusations after the first one: the members notice at
# nearly the same time that a member cannot connect.
_ACCUSING_SECONDS = 2.0


class Phase(enum.Enum):
    """See the table above."""

    STOPPED = enum.auto()
    FORMING = enum.auto()
    TRAINING = enum.auto()


class Generation:
    """The newest generation, from the first one on.

    Attributes:
        number: The number of this generation, from 1; 0 before the first one.
        members: The members that are not lost, in the order of their ranks.
        phase: See the table above.
        since: When the phase began.
        ever_formed: True once the members of any generation were connected.
        late: How many generations in a row were not connected in time with no
            new member to blame.
        unconnected: Pairs of members that could not connect.
    """

    def __init__(self, actions: Actions, clock: Callable[[], float]) -> None:
        self._actions = actions
        self._clock = clock
        self.number = 0
        self.members: list[Worker] = []
        self.phase = Phase.STOPPED
        self.since = clock()
        self.ever_formed = False
        self.late = 0
        self.unconnected: set[Accusation] = set()
        self._stop_at, self._stop_why = math.inf, ""

    def going_on(self) -> list[Worker]:
        """Returns the members that are not at the end of the training."""
        return [each for each in self.members if not each.is_over]

    def waited_for(self) -> list[Worker]:
        """Returns the members that have not left the generation yet."""
        return [each for each in self.going_on() if not each.ready]

    def form(self, members: Sequence[Worker]) -> None:
        """Begins the next generation; `members` are in rank order."""
        self.number += 1
        self._enter(Phase.FORMING)
        self.members = list(members)
        described = [
            {
                "worker": worker.name,
                "address": worker.address,
                "node": worker.node,
                "steps": worker.steps,
            }
            for worker in members
        ]
        for rank, worker in enumerate(members):
            worker.ready = worker.formed = False
            worker.due = math.inf
            worker.rank = rank
            worker.generation = self.number
        # One message for all members is encoded once. Each finds itself in it.
        self._actions.send(
            members, "form", generation=self.number, members=described
        )
        self._actions.say(
            f"generation {self.number}: {len(members)} workers on "
            f"{len({worker.node for worker in members})} hosts."
        )

    def train_if_connected(self) -> None:
        """Begins the training once all members have their connections."""
        if self.phase is Phase.FORMING and all(
            each.formed for each in self.members
        ):
            self._enter(Phase.TRAINING)
            for each in self.members:
                each.connected = True
            self.ever_formed = True
            self.late = 0

    def accuse(self, accuser: Worker, accused: Worker, why: str) -> None:
        """Notes that a member cannot reach another one."""
        self.unconnected.add(
            (self.number, frozenset((accuser.name, accused.name)))
        )
        # The accusations of all members show who is to blame.
        self.stop_soon(
            _ACCUSING_SECONDS, f"{accuser} cannot reach {accused}: {why}"
        )

    def stop(self, why: str) -> None:
        """Makes all members leave the generation."""
        if self.phase is Phase.STOPPED:
            return
        self._enter(Phase.STOPPED)
        inside = [
            each for each in self.members if not (each.ready or each.done)
        ]
        self._actions.send(inside, "stop", generation=self.number, why=why)

    def stop_soon(self, seconds: float, why: str) -> None:
        """Stops the generation in `seconds`, unless it stops earlier."""
        at = self._clock() + seconds
        if self.phase is not Phase.STOPPED and at < self._stop_at:
            self._stop_at, self._stop_why = at, why

    def keep_times(self) -> bool:
        """Stops the generation when its time is over.

        Returns:
            True if its members were not connected in time.
        """
        now = self._clock()
        if now >= self._stop_at:
            self.stop(self._stop_why)
        elif (
            self.phase is Phase.FORMING and now >= self.since + FORMING_SECONDS
        ):
            self.stop(
                f"not all members were connected in {FORMING_SECONDS:g} s"
            )
            return True
        return False

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self._clock()
        if phase is not Phase.TRAINING:  # A stop may be due in training.
            self._stop_at = math.inf

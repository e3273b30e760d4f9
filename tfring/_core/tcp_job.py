"""A job whose ranks connect to a launcher: an object per generation.

An elastic job has a generation for each change of its ranks. A job with fixed
ranks has one generation, unless all ranks call `tfring.init` again.
"""

from __future__ import annotations

import collections
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from absl import logging

from tfring._core import native
from tfring._core.connections import Connections
from tfring._core.job import Job, Topology
from tfring._core.launcher_link import LauncherLink, Over
from tfring._core.mesh import Form, Member, UnreachableError
from tfring.rendezvous import wire

if TYPE_CHECKING:
    from mpi4py import MPI

_T = TypeVar("_T")


class TcpJob(Job):
    """A generation with this worker as a member.

    Attributes:
        launcher: The connection to the launcher.
        form: The members.
        over: Set if the members have ended this worker's training, which leaves
            it alone.
    """

    def __init__(
        self,
        launcher: LauncherLink,
        form: Form,
        place: Topology | None = None,
        over: Over | None = None,
    ) -> None:
        """Connects with all members, and starts the engine. Collective.

        `place` is the future place of a worker that is alone until it joins.

        Raises:
            OSError: A member cannot be reached, or the generation is over.
        """
        self.launcher = launcher
        self.form = form
        self.over = over
        self._place = place
        # How many pairs were made with each rank.
        self._pairs: collections.Counter[int] = collections.Counter()
        self.topology = Topology.of_nodes(
            form.rank, [member.node for member in form.members]
        )
        self._connections = Connections(
            launcher.mesh, form, self._end_generation
        )
        self._connections.start_world(replaces_ranks=True)

    @property
    def place(self) -> Topology:
        return self._place or self.topology

    @property
    def is_beside(self) -> bool:
        """Tells whether this worker builds alone, and has yet to join."""
        return self._place is not None

    @property
    def comm(self) -> MPI.Intracomm:
        raise native.no_mpi()

    def agreed(self, value: _T) -> _T:
        # All workers have the launcher's environment, and a worker that joins
        # later could not take part in an agreement.
        return value

    def raise_everywhere(self, error: Exception | None) -> None:
        # Only this rank raises, because joiners take part in no agreement. The
        # launcher reports its end to the others.
        if error is not None:
            raise error

    def nodes(self) -> list[int]:
        return list(self._connections.nodes)

    def add_process_set(
        self, process_set_id: int, ranks: Sequence[int]
    ) -> str | None:
        return self._connections.add_process_set(process_set_id, ranks)

    def _end_generation(self, error: Exception) -> None:
        if isinstance(error, RuntimeError):  # a retry would fail, too
            fail(str(error))
        _end_generation(self.launcher, self.form, error)

    def next(self, steps: int) -> TcpJob:
        return _join_next(self.launcher, steps, self.place)

    def why_stopped(self) -> str | None:
        """Returns why this generation is over; None while it is not."""
        return self.launcher.why_stopped(self.form.generation)

    def pair(self, other: int, seconds: float) -> wire.Channel:
        """Connects this rank with another one, which must call this in time.

        It also works after the engine has stopped.

        Raises:
            OSError: The other rank does not connect, or the generation is over.
        """
        self._pairs[other] += 1
        found = self.launcher.mesh.connect(
            self.form,
            f"pair {self._pairs[other]}",
            sorted((self.topology.rank, other)),
            seconds,
        )
        return wire.Channel(socket.socket(fileno=max(found)))


_launcher: LauncherLink | None = None
_generation = 0  # the last that this worker was told to form
# True once this worker was in a generation, or its training has ended.
_has_joined = False


def join(comm: Any) -> TcpJob:
    """Joins the job, once the rendezvous says who belongs to it.

    Raises:
        RuntimeError: An argument needs MPI, or a variable is missing.
        ValueError: A setting is unusable.
        OSError: The rendezvous cannot be reached.
    """
    global _launcher
    if comm is not None:
        raise RuntimeError(
            "tfring.init: comm must be None in a job that has no MPI, as in an "
            "elastic one: the launcher decides who belongs to it."
        )
    native.check_settings()
    if _launcher is None:
        _launcher = LauncherLink()
    return _join_next(_launcher, -1, None)


def _join_next(
    launcher: LauncherLink, steps: int, place: Topology | None
) -> TcpJob:
    """Joins the next generation that can be formed.

    A worker that has yet to build gets a job of its own first, and joins a
    generation later. `place` is this worker's place in the job that it leaves;
    None if it leaves none.

    Raises:
        RuntimeError: This worker leaves no job, and the members have ended its
            training.
    """
    global _generation, _has_joined
    while True:
        # After a shutdown `place` is None, and `_generation` is not 0.
        building = place is None and _generation == 0
        answer = launcher.ready(_generation, steps, building=building)
        if isinstance(answer, Topology):
            logging.info("tfring: this worker builds while the others train")
            return _alone(launcher, answer)
        _has_joined = True
        if isinstance(answer, Over):
            if place is None:
                raise RuntimeError(
                    "tfring.init: the training of this elastic job has ended, "
                    "and no other one can begin after a tfring.shutdown. Leave "
                    "the shutdown out."
                )
            return _alone(launcher, place, answer)
        _generation = answer.generation
        launcher.mesh.begin(_generation)
        try:
            job = TcpJob(launcher, answer)
        except OSError as error:
            logging.info(
                "tfring: generation %d could not be formed: %s",
                _generation,
                error,
            )
            _end_generation(launcher, answer, error)
            launcher.wait_until_stopped(_generation)
        else:
            launcher.say("formed", generation=_generation)
            return job


def _alone(
    launcher: LauncherLink, place: Topology, over: Over | None = None
) -> TcpJob:
    own = Member(launcher.worker, launcher.mesh.address, launcher.node)
    # An aborted generation's number cannot be used again.
    return TcpJob(launcher, Form(_generation + 1, 0, (own,)), place, over)


def _end_generation(
    launcher: LauncherLink, form: Form, error: Exception
) -> None:
    if isinstance(error, UnreachableError):
        launcher.say(
            "suspect",
            generation=form.generation,
            worker=form.members[error.rank].worker,
            why=str(error),
        )
    native.capi().tfring_abort(
        form.generation, str(error).encode(errors="replace")
    )


def leave(status: int) -> None:
    """Tells the launcher, once, that this process ends by itself."""
    if _launcher is None or _launcher.is_leaving:
        return
    if not _has_joined and status == 0:
        # Without an error its end would look like the end of the training.
        fail(
            "the script has ended before it joined the others: its training "
            "belongs into a function of tfring.elastic.run, or into "
            "tfring.elastic.fit"
        )
    else:
        _launcher.say("bye", status=status)


def fail(text: str) -> None:
    """Tells the launcher why this process ends; the job goes on."""
    if _launcher is not None:
        _launcher.say("error", text=text)
        why = f"worker {_launcher.worker} has failed: {text}"
        native.capi().tfring_abort(_generation, why.encode(errors="replace"))


def stop_waiting() -> None:
    """Has this worker leave the job if it waits for a place, and may leave.

    A signal handler may call it.
    """
    if _launcher is not None:
        _launcher.stop_waiting()


def has_left() -> bool:
    """Tells whether this worker has told the launcher that it ends."""
    return _launcher is not None and _launcher.is_leaving


def disown() -> None:
    """Leaves the job to the parent, in a child that it has forked."""
    if _launcher is not None:
        _launcher.disown()

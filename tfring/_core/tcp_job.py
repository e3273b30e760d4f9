"""An elastic job: one object for each of its generations."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from absl import logging

from tfring._core import native
from tfring._core.job import Job, Topology
from tfring._core.launcher_link import Form, LauncherLink, Member, Over
from tfring._core.mesh import Mesh, UnreachableError
from tfring.rendezvous import wire

if TYPE_CHECKING:
    from mpi4py import MPI

_T = TypeVar("_T")

# What the C library takes in place of a socket.
_NOT_YET, _FAILED = -1, -2


class TcpJob(Job):
    """A generation of which this worker is a member.

    Attributes:
        over: Set if the members have ended this worker's training, so that it
            is alone now.
    """

    def __init__(
        self,
        launcher: LauncherLink,
        mesh: Mesh,
        form: Form,
        place: Topology | None = None,
    ) -> None:
        """Connects with the other members, and starts the engine. Collective.

        Args:
            launcher: The connection to the launcher.
            mesh: This worker's connections with others.
            form: The members.
            place: The place to come of a worker that is alone until it joins.

        Raises:
            OSError: A member cannot be reached, or the generation is over.
        """
        self.over: Over | None = None
        self._place = place
        self._launcher = launcher
        self._mesh = mesh
        self._form = form
        self._pair_names = 0
        self._made: list[_Connections] = []
        nodes = [member.node for member in form.members]
        firsts: dict[str, int] = {}  # the first rank of each node
        self._nodes = [
            firsts.setdefault(n, rank) for rank, n in enumerate(nodes)
        ]
        self.topology = Topology.of_nodes(form.rank, nodes)
        size = len(nodes)
        connections = self._connections("world", range(size))
        error = native.capi().tfring_init_sockets(
            form.generation,
            form.rank,
            size,
            (ctypes.c_int32 * size)(*self._nodes),
            connections.callback,
        )
        connections.raise_error()
        if error is not None:
            raise ConnectionError(error.decode())

    @property
    def place(self) -> Topology:
        return self._place or self.topology

    @property
    def is_beside(self) -> bool:
        """Tells if this worker builds by itself, and has yet to join."""
        return self._place is not None

    @property
    def generation(self) -> int:
        """Its number, from 1 on."""
        return self._form.generation

    @property
    def comm(self) -> MPI.Intracomm:
        raise native.no_mpi()

    def agreed(self, value: _T) -> _T:
        # All workers have the launcher's environment. One that joins later
        # could not take part in an agreement.
        return value

    def add_process_set(
        self, process_set_id: int, ranks: Sequence[int]
    ) -> str | None:
        own = self.topology.rank
        connections = self._connections(f"set {process_set_id}", ranks)
        error = native.capi().tfring_add_process_set_sockets(
            process_set_id,
            (ctypes.c_int32 * len(ranks))(*ranks),
            len(ranks),
            ranks.index(own) if own in ranks else -1,
            (ctypes.c_int32 * len(ranks))(*(self._nodes[r] for r in ranks)),
            connections.callback,
        )
        failed = connections.error or error
        if isinstance(failed, bytes):
            return failed.decode()
        return None if failed is None else str(failed)

    def _connections(self, name: str, ranks: Sequence[int]) -> _Connections:
        made = _Connections(self._launcher, self._mesh, self._form, name, ranks)
        # Engines call it as long as they live, which is shorter than this does.
        self._made.append(made)
        return made

    def leave(self) -> None:
        pass

    def next(self, steps: int) -> TcpJob:
        global _was_let_off
        self._launcher.ready(_generation, self._mesh.address, steps)
        form = self._launcher.wait_for_form(after=_generation)
        if isinstance(form, Form):
            joined = _join_from(self._launcher, self._mesh, form, steps)
            if isinstance(joined, TcpJob):
                return joined
            form = joined
        _was_let_off = True
        alone = _alone(self._launcher, self._mesh, self.place)
        alone.over = form
        return alone

    def training(self, phase: str, **more: Any) -> None:
        """Tells the launcher where this worker is in its training."""
        self._launcher.training(phase, **more)

    def state(self, parts: list[tuple[str, str]]) -> None:
        """Tells the launcher the parts of this worker's state."""
        self._launcher.state(parts)

    def has_waiting(self) -> bool:
        """Tells if the job is to form anew at the next commit."""
        return self._launcher.has_waiting()

    def why_stopped(self) -> str | None:
        """Why this generation is over; None while it is not."""
        return self._launcher.why_stopped(self.generation)

    def next_pair_name(self, what: str) -> str:
        """Returns a name for `pair`, another one each time.

        Called equally often on all ranks, it is the same on all.
        """
        self._pair_names += 1
        return f"{what} {self._pair_names}"

    def pair(self, name: str, other: int, seconds: float) -> wire.Channel:
        """Connects this rank with another one, which does the same.

        Also after the engine has stopped.

        Args:
            name: Of what it is for, used once by these two.
            other: The other rank.
            seconds: How long the other one may take.

        Raises:
            OSError: It does not come, or the generation is over.
        """
        pair = sorted((self.topology.rank, other))
        found = self._mesh.connect(
            self._form, name, pair, self.why_stopped, seconds
        )
        return wire.Channel(socket.socket(fileno=max(found)))


class _Connections:
    """Connects the ranks of a process set on behalf of the C library."""

    def __init__(
        self,
        launcher: LauncherLink,
        mesh: Mesh,
        form: Form,
        name: str,
        ranks: Sequence[int],
    ) -> None:
        self._launcher = launcher
        self._mesh = mesh
        self._form = form
        self._name = name
        self._ranks = ranks
        self._control: list[int] = []
        self.error: Exception | None = None
        self.callback = native.CONNECT(self._call)

    def _call(self, channel: int, peer: int) -> int:
        try:
            return self._connect(channel, peer)
        except Exception as error:
            self.error = error
            if channel > 0:
                self._end_generation(error)
            return _FAILED

    def _connect(self, channel: int, peer: int) -> int:
        name = f"{self._name}/{channel}"
        if channel == 0:
            self._control = self._control or self._mesh.connect(
                self._form, name, self._ranks, self._why_stopped
            )
            return self._control[peer]
        found = self._mesh.connect_when_needed(
            self._form, name, self._ranks[peer], self._why_stopped
        )
        return _NOT_YET if found is None else found

    def _why_stopped(self) -> str | None:
        return self._launcher.why_stopped(self._form.generation)

    def _end_generation(self, error: Exception) -> None:
        """Ends it: what needs the connection hears of it by no other way."""
        if isinstance(error, UnreachableError):
            _suspect(self._launcher, self._form, error)
        if isinstance(error, RuntimeError):  # It would be so again.
            fail(str(error))
        native.capi().tfring_abort(self._form.generation, str(error).encode())

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error


_launcher: LauncherLink | None = None
_mesh: Mesh | None = None
_generation = 0  # the last that this worker was told to form
# The members have ended a training of this worker.
_was_let_off = False
# It has said why it ends.
_has_left = False


def join(comm: Any) -> TcpJob:
    """Joins the job, once the rendezvous says who belongs to it.

    Raises:
        RuntimeError: A setting is not for such jobs.
        ValueError: A setting is unusable.
        OSError: The rendezvous cannot be reached.
    """
    global _launcher, _mesh
    if comm is not None:
        raise RuntimeError(
            "tfring.init: comm must be None in an elastic job: its launcher "
            "alone decides who belongs to it."
        )
    native.check_settings()
    if _launcher is None or _mesh is None:
        _launcher = LauncherLink()
        _mesh = Mesh(_launcher.interface, _launcher.worker, _launcher.token)
        _launcher.probe_by(_mesh.probe)
    left = _generation  # Not 0 after a shutdown.
    _launcher.ready(left, _mesh.address, -1, building=left == 0)
    form = _launcher.wait_for_place(after=left)
    if isinstance(form, Form):
        job = _join_from(_launcher, _mesh, form, -1)
        assert isinstance(job, TcpJob)  # It is in no training yet.
        return job
    logging.info("tfring: this worker builds while the others train")
    return _alone(_launcher, _mesh, form)


def _alone(launcher: LauncherLink, mesh: Mesh, place: Topology) -> TcpJob:
    """A job of this worker alone, until it joins the members."""
    own = Member(launcher.worker, mesh.address, launcher.node, -1)
    # Not a generation that has been aborted.
    form = Form(_generation + 1, 0, (own,))
    return TcpJob(launcher, mesh, form, place=place)


def _join_from(
    launcher: LauncherLink, mesh: Mesh, form: Form, steps: int
) -> TcpJob | Over:
    """Joins a generation, or the first later one that is formed."""
    global _generation
    while True:
        generation = _generation = form.generation
        mesh.begin(generation)
        try:
            job = TcpJob(launcher, mesh, form)
        except OSError as error:
            why = f"generation {generation} could not be formed: {error}"
            logging.info("tfring: %s", why)
            native.capi().tfring_abort(generation, why.encode())
            if isinstance(error, UnreachableError):
                _suspect(launcher, form, error)
            launcher.wait_until_stopped(generation)
            launcher.ready(generation, mesh.address, steps)
            next_form = launcher.wait_for_form(after=generation)
            if isinstance(next_form, Over):
                return next_form
            form = next_form
            continue
        launcher.formed(generation)
        return job


def _suspect(
    launcher: LauncherLink, form: Form, error: UnreachableError
) -> None:
    launcher.suspect(
        form.generation, form.members[error.rank].worker, str(error)
    )


def leave(status: int, *, preempted: bool = False) -> None:
    """Tells the launcher, once, that this process ends by itself.

    Args:
        status: Its exit status.
        preempted: True if the training continues without it.
    """
    global _has_left
    if _launcher is None or _has_left:
        return
    has_joined = _generation > 0 or _was_let_off
    if not has_joined and status == 0 and not preempted:
        # Its end says that the training is not over.
        fail(
            "the script has ended before it joined the others: its training "
            "belongs into a function of tfring.elastic.run, or into "
            "tfring.elastic.fit"
        )
    else:
        _has_left = True
        _launcher.bye(status, preempted=preempted)


def fail(text: str) -> None:
    """Tells the launcher why this process ends; the job goes on."""
    global _has_left
    _has_left = True
    if _launcher is not None:
        _launcher.error(text)
        why = f"worker {_launcher.worker} has failed: {text}"
        native.capi().tfring_abort(_generation, why.encode())


def has_left() -> bool:
    """Tells if this worker has told the launcher that it ends."""
    return _has_left


def disown() -> None:
    """Leaves the job to the parent, in a child that it has forked."""
    if _launcher is not None:
        _launcher.disown()

"""Engines whose ranks are connected by TCP."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from tfring._core import native
from tfring._core.mesh import Form, Mesh

# The results of a connect callback without a socket; see capi.h.
_NOT_YET, _FAILED = -1, -2


class Connections:
    """The connections of a job's ranks, and the engines that use them.

    Attributes:
        mesh: Connects this rank with others.
        form: The ranks.
        on_failure: Called, in any thread, if a rank cannot be reached after its
            engine has started.
        nodes: For each rank, the first rank on its node.
    """

    def __init__(
        self, mesh: Mesh, form: Form, on_failure: Callable[[Exception], None]
    ) -> None:
        self.form = form
        self.mesh = mesh
        self.on_failure = on_failure
        firsts: dict[str, int] = {}  # the first rank of each node
        self.nodes = [
            firsts.setdefault(member.node, rank)
            for rank, member in enumerate(form.members)
        ]
        self._world = _OfSet(self, "world", range(len(self.nodes)))
        # Engines call these while they live, and this object outlives them.
        self._of_sets: list[_OfSet] = []

    def connect(self) -> None:
        """Connects all ranks already before `start_world`. Collective.

        Raises:
            OSError: A rank cannot be reached.
            RuntimeError: The connections exceed this process's limit of
                descriptors.
        """
        self._world.connect_control()

    def disconnect(self) -> None:
        """Closes the connections of `connect`, if no engine has taken them."""
        for descriptor in self._world.control:
            if descriptor >= 0:
                os.close(descriptor)

    def start_world(self, *, replaces_ranks: bool) -> None:
        """Starts the engine of all ranks. Collective.

        Args:
            replaces_ranks: True if a rank that hangs is to be replaced.

        Raises:
            OSError: A rank cannot be reached, or the job is over.
        """
        size = len(self.nodes)
        connect = self._world
        error = native.capi().tfring_init_sockets(
            self.form.generation,
            self.form.rank,
            size,
            (ctypes.c_int32 * size)(*self.nodes),
            connect.callback,
            replaces_ranks,
        )
        if connect.error is not None:
            raise connect.error
        if error is not None:
            raise ConnectionError(error.decode())

    def add_process_set(
        self, process_set_id: int, ranks: Sequence[int]
    ) -> str | None:
        """Starts the engine of a set, as `Job.add_process_set` does."""
        own = self.form.rank
        connect = _OfSet(self, f"set {process_set_id}", ranks)
        self._of_sets.append(connect)
        error = native.capi().tfring_add_process_set_sockets(
            process_set_id,
            (ctypes.c_int32 * len(ranks))(*ranks),
            len(ranks),
            ranks.index(own) if own in ranks else -1,
            (ctypes.c_int32 * len(ranks))(*(self.nodes[r] for r in ranks)),
            connect.callback,
        )
        if connect.error is not None:
            return str(connect.error)
        return None if error is None else error.decode()


class _OfSet:
    """Connects the ranks of a process set on behalf of the C library."""

    def __init__(
        self, job: Connections, name: str, ranks: Sequence[int]
    ) -> None:
        self._job = job
        self._name = name
        self._ranks = ranks
        self.control: list[int] = []
        self.error: Exception | None = None
        self.callback = native.CONNECT(self._call)

    def connect_control(self) -> list[int]:
        """Returns the ranks' sockets, each of which the engine takes once."""
        self.control = self.control or self._job.mesh.connect(
            self._job.form, f"{self._name}/0", self._ranks
        )
        return self.control

    def _call(self, channel: int, peer: int) -> int:
        try:
            return self._connect(channel, peer)
        except Exception as error:
            self.error = error
            if channel > 0:  # nobody else reports it
                self._job.on_failure(error)
            return _FAILED

    def _connect(self, channel: int, peer: int) -> int:
        if channel == 0:
            return self.connect_control()[peer]
        found = self._job.mesh.connect_when_needed(
            self._job.form, f"{self._name}/{channel}", self._ranks[peer]
        )
        return _NOT_YET if found is None else found

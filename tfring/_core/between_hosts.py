"""TCP between the ranks of a job that MPI has started.

Note [Without a fabric]: on hosts without a fabric such as InfiniBand, MPI sends
by TCP. tfring's own TCP connections use more of the same link, with less CPU
time; docs/performance.md has figures. So MPI starts the ranks and exchanges
their addresses, and the engines use tfring's connections.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import logging

from tfring import _build_info
from tfring._core import fabrics, native, settings
from tfring._core.connections import Connections
from tfring._core.mesh import Form, Member, Mesh
from tfring.rendezvous import wire
from tfring.rendezvous.handshake import make_token

if TYPE_CHECKING:
    from mpi4py import MPI

_LOOPBACK = "127.0.0.1"
_ATTEMPT_SECONDS = 2.0
# Linux's request for the address of an interface.
_SIOCGIFADDR = 0x8915

# The number of the last job that this process has connected.
_generation = 0


class TcpRanks:
    """Owns the TCP connections between the ranks of a job that MPI has started.

    Attributes:
        connections: What starts the engines over these connections.
    """

    def __init__(self, mesh: Mesh, form: Form) -> None:
        self.connections = Connections(mesh, form, self._end)
        self._mesh = mesh
        self._generation = form.generation

    def close(self) -> None:
        """Stops accepting connections."""
        self._mesh.close()

    def _end(self, error: Exception) -> None:
        native.capi().tfring_abort(
            self._generation, str(error).encode(errors="replace")
        )


def connect(comm: MPI.Intracomm, nodes: Sequence[int]) -> TcpRanks | None:
    """Connects the ranks by TCP if that is faster than MPI. Collective.

    Args:
        comm: The ranks.
        nodes: For each rank, the first rank on its node.

    Returns:
        The connections; None if the engines are to use MPI.

    Raises:
        RuntimeError: The setting asks for TCP, and a rank cannot be reached.
    """
    global _generation
    wish = comm.bcast(settings.between_hosts())
    if not _tries_tcp(comm, nodes, wish):
        return None
    token = comm.bcast(make_token())
    _generation = max(comm.allgather(_generation)) + 1
    interface = "0.0.0.0" if len(set(nodes)) > 1 else _LOOPBACK
    # No launcher tells these ranks that a job is over.
    mesh = Mesh(interface, str(comm.rank), token, lambda generation: None)
    address, why = _address(comm, nodes, mesh, token)
    own = Member(
        str(comm.rank), (address, mesh.address[1]), str(nodes[comm.rank])
    )
    form = Form(_generation, comm.rank, tuple(comm.allgather(own)))
    ranks = TcpRanks(mesh, form)
    whys = comm.allgather(why)
    if not any(whys):
        try:
            ranks.connections.connect()
        except (OSError, RuntimeError) as error:
            why = str(error)
        whys = comm.allgather(why)
    failed = [f"rank {r}: {why}" for r, why in enumerate(whys) if why]
    if not failed:
        return ranks
    ranks.connections.disconnect()
    ranks.close()
    if wish == "tcp":
        raise RuntimeError(
            f"tfring.init: TFRING_BETWEEN_HOSTS=tcp, but {failed[0]}."
        )
    if comm.rank == 0:
        logging.warning(
            "tfring: the ranks cannot be connected by TCP, so MPI carries "
            "their data: %s. OMPI_MCA_btl_tcp_if_include chooses the network, "
            "and TFRING_BETWEEN_HOSTS=mpi leaves the attempt out.",
            failed[0],
        )
    return None


def _tries_tcp(comm: MPI.Intracomm, nodes: Sequence[int], wish: str) -> bool:
    """Tells whether TCP is to be tried; see Note [Without a fabric]."""
    if wish != "auto":
        return wish == "tcp" and comm.size > 1
    if len(set(nodes)) == 1:
        return False
    # Users of MPICH choose the network by an argument of its launcher.
    may_try = _build_info.MPI_VERSION.startswith("Open MPI") and (
        fabrics.are_absent(os.environ, fabrics.files_of_settings(os.environ))
    )
    return all(comm.allgather(may_try))


def _address(
    comm: MPI.Intracomm, nodes: Sequence[int], mesh: Mesh, token: str
) -> tuple[str, str]:
    """Returns this rank's address for the others, or the reason it has none.

    A rank takes the address from which it reaches rank 0. A rank on rank 0's
    node takes the address at which another node has reached rank 0.
    """
    if len(set(nodes)) == 1:
        return _LOOPBACK, ""
    port = mesh.address[1]
    of_first = own_addresses(os.environ) if comm.rank == 0 else []
    choices = comm.bcast([(each, port) for each in of_first])
    is_beside_first = nodes[comm.rank] == nodes[0]
    way, why = None, ""
    if not is_beside_first:
        way, why = _way_to(choices, token)
    ways = comm.allgather(way)
    if is_beside_first:
        return next(way[1] for way in [*ways, ("", "")] if way), ""
    return way[0] if way else "", why


def _way_to(
    choices: Sequence[tuple[str, int]], token: str
) -> tuple[tuple[str, str] | None, str]:
    """Returns this rank's address and rank 0's, or why it cannot reach it."""
    why = "rank 0 has no IPv4 address"
    for address in choices:
        try:
            # The listener checks the handshake, and closes the connection.
            with wire.connect(
                address, token, {"role": "answer"}, _ATTEMPT_SECONDS
            ) as sock:
                return (str(sock.getsockname()[0]), address[0]), ""
        except OSError as error:
            why = f"rank 0 cannot be reached at {address[0]}: {error}"
    return None, why


def own_addresses(environment: Mapping[str, str]) -> list[str]:
    """Returns the IPv4 addresses of this machine that a job may use.

    Open MPI's settings for TCP choose among them.
    """
    chosen = environment.get("OMPI_MCA_btl_tcp_if_include", "")
    left_out = environment.get("OMPI_MCA_btl_tcp_if_exclude", "127.0.0.0/8")
    found = []
    for _, name in socket.if_nameindex():
        address = _address_of(name)
        if address is None or _is_among(left_out, name, address):
            continue
        if not chosen or _is_among(chosen, name, address):
            found.append(address)
    return found


def _address_of(interface: str) -> str | None:
    """Returns the IPv4 address of an interface, or None."""
    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            reply = fcntl.ioctl(sock, _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def _is_among(choices: str, name: str, address: str) -> bool:
    """Tells whether a list has an interface, by its name or its subnet."""
    for choice in choices.split(","):
        if choice.strip() == name:
            return True
        if "/" in choice:
            network = ipaddress.ip_network(choice.strip(), strict=False)
            if ipaddress.ip_address(address) in network:
                return True
    return False

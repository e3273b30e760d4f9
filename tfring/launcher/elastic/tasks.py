"""Elastic jobs that a batch system starts: a task on each machine.

All tasks run the same command line, with the address of one of their machines.
The task there is the launcher. The others are supervisors of their hosts, which
join the job and stay until its end.
"""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import os
import socket
import sys
import time

from tfring.launcher.elastic import supervisor
from tfring.launcher.elastic.driver import Driver
from tfring.launcher.elastic.elastic_job import ElasticJob
from tfring.launcher.output import View
from tfring.rendezvous import handshake, wire

_AGAIN_SECONDS = 0.5
_PROBE_SECONDS = 5.0


def run(job: ElasticJob, view: View, address: wire.Address) -> int:
    """Runs this machine's part of a job; returns the job's exit status.

    `address` is where the launcher listens, on this machine or another. The
    numbers of `job`, and `view`, count on that machine alone.

    Raises:
        OSError: The launcher cannot listen at `address`.
        ValueError: There is no token, or no other machine can reach `address`.
    """
    token = _token()
    host, port = address
    deadline = time.monotonic() + job.limits.replacement_seconds
    while True:
        # Look the name up in each round, because it may become known or change.
        if (listener := _listen(job, address, token)) is not None:
            here = dataclasses.replace(job, interface=listener.address[0])
            return Driver(here, view, token, listener).run()
        try:
            socket.create_connection(address, _PROBE_SECONDS).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                print(
                    f"tfringrun: {host}:{port} cannot be reached: {error}. "
                    "Is its task running? "
                    f"(TFRING_ELASTIC_TIMEOUT_SECONDS="
                    f"{job.limits.replacement_seconds:g})",
                    file=sys.stderr,
                )
                return 1
            time.sleep(_AGAIN_SECONDS)
        else:
            return _join(job, address, token, deadline - time.monotonic())


def _token() -> str:
    token = os.environ.get("TFRING_ELASTIC_TOKEN", "")
    try:
        handshake.key_of(token)
    except ValueError:
        raise ValueError(
            "--rendezvous: TFRING_ELASTIC_TOKEN must be the same "
            f"{handshake.TOKEN_BYTES} random bytes in hex for all tasks, as "
            f"`openssl rand -hex {handshake.TOKEN_BYTES}` prints them; "
            + (f"it has {len(token)} characters." if token else "it is unset.")
        ) from None
    return token


def _listen(
    job: ElasticJob, address: wire.Address, token: str
) -> wire.Listener | None:
    """Listens at the job's address if it is this machine's; None otherwise."""
    host, port = address
    try:
        sock = wire.listening_socket(job.interface or host, port)
    except socket.gaierror:
        return None  # the name may become known later
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise
    here = ipaddress.ip_address(sock.getsockname()[0])
    # Debian maps a machine's own name to a loopback address, where only this
    # machine would reach the launcher. A loopback address as such is meant.
    is_alias = here.is_loopback and host not in (str(here), "localhost")
    if here.is_unspecified or (is_alias and not job.interface):
        sock.close()
        raise ValueError(
            f"--rendezvous: on this machine {host} is {here}, where no other "
            "reaches it. Pass its address in the network, or set "
            "TFRING_ELASTIC_INTERFACE to that."
        )
    return wire.Listener(sock, token)


def _join(
    job: ElasticJob, address: wire.Address, token: str, patience_seconds: float
) -> int:
    host = os.environ.get("TFRING_ELASTIC_HOST") or socket.gethostname()
    configuration = job.configuration(host, token, address)
    configuration["slots"] = job.hosts[0].slots
    configuration["has_lifeline"] = False
    configuration["patience_seconds"] = patience_seconds
    print(
        f"tfringrun: host {host} joins the job at {address[0]}:{address[1]}, "
        "which shows its output.",
        file=sys.stderr,
    )
    return supervisor.supervise(configuration)

"""Tries a job's ranks and links: `tfringrun -np N --self-test`.

Every rank runs this. Each collective is run once and its result is checked.
Then the links of the ring are timed. Rank 0 reports in plain words which
collectives work, how fast the links are, and how to mend any problem.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

_LARGE_BYTES = 64 << 20
_LINK_BYTES = 8 << 20
# A link this many times slower than the median of its kind is reported.
_SLOW_LINK = 4.0


def main() -> int:
    """Runs the test on this rank; returns its exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # A missing rank must be reported before the user gives up.
    os.environ.setdefault("TFRING_STALL_CHECK_TIME_SECONDS", "10")
    os.environ.setdefault("TFRING_STALL_SHUTDOWN_TIME_SECONDS", "30")
    import tfring

    tfring.init()
    from mpi4py import MPI

    from tfring.launcher.collective_checks import CHECKS

    world = MPI.COMM_WORLD
    report = _Report(world.rank == 0)
    places = world.allgather(_Place.of_this_rank())
    report.layout(places)
    failures = []
    report.heading("Collectives")
    for name, check in CHECKS:
        failures += report.check(name, world.gather(_complaint(check)))
    failures = world.bcast(failures)
    links: list[_Link] = []
    report.heading("Speed")
    if failures:
        report.line("not measured, as a collective failed")
    elif world.size > 1:
        report.collective_speed(world.size, *_time_collectives(world))
        links = _time_links(world, places)
        report.links(links)
    else:
        report.line("one rank has no links: pass -np 2 or more")
    report.advice([*failures, *_advice(places, links)])
    tfring.shutdown()
    return 1 if failures else 0


@dataclasses.dataclass(frozen=True)
class _Place:
    """The host of a rank, with its cores and software versions."""

    host: str
    cores: int  # cores that the rank may use
    host_cores: int  # cores of the host
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of_this_rank(cls) -> _Place:
        import keras
        import tensorflow as tf

        import tfring

        return cls(
            socket.gethostname(),
            len(os.sched_getaffinity(0)),
            os.cpu_count() or 1,
            (
                ("tfring", tfring.__version__),
                ("TensorFlow", tf.__version__),
                ("Keras", keras.__version__),
                ("Python", platform.python_version()),
            ),
        )


@dataclasses.dataclass(frozen=True)
class _Link:
    """The link between a rank and the next one in the ring."""

    source: int
    target: int
    same_host: bool
    latency_us: float
    gigabytes_per_second: float


def _complaint(check: Callable[[int, int], None]) -> str | None:
    import tfring

    try:
        check(tfring.rank(), tfring.size())
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else repr(error)
    return None


def _time_collectives(world: MPI.Intracomm) -> tuple[float, float]:
    """Returns the slowest rank's seconds of a small and a large allreduce."""
    import tensorflow as tf

    import tfring

    def seconds_each(tensor: tf.Tensor, times: int) -> float:
        tfring.allreduce(tensor, op=tfring.Sum)
        world.Barrier()
        start = time.perf_counter()
        for _ in range(times):
            tfring.allreduce(tensor, op=tfring.Sum)
        return float(max(world.allgather(time.perf_counter() - start)) / times)

    small = seconds_each(tf.zeros([1]), 100)
    return small, seconds_each(tf.zeros([_LARGE_BYTES // 4]), 4)


def _time_links(world: MPI.Intracomm, places: Sequence[_Place]) -> list[_Link]:
    """Times ping-pongs between each rank and the next, over plain MPI."""
    size = world.size
    # Two ranks have one link. Of more ranks each has two links, which must not
    # be timed at once: the links after even ranks come first, then those after
    # odd ranks, and the link after the last rank comes at the end.
    sources = range(size if size > 2 else 1)
    turns = sorted(sources, key=lambda i: 2 if i == size - 1 else i % 2)
    links = []
    for source in turns:
        target = (source + 1) % size
        if world.rank not in (source, target):
            continue
        peer = target if world.rank == source else source
        latency = _half_round_trip(world, peer, 4, 100)
        seconds = _half_round_trip(world, peer, _LINK_BYTES, 10)
        if world.rank == source:
            links.append(
                _Link(
                    source,
                    target,
                    same_host=places[source].host == places[target].host,
                    latency_us=latency * 1e6,
                    gigabytes_per_second=_LINK_BYTES / seconds / 1e9,
                )
            )
    return [link for part in world.allgather(links) for link in part]


def _half_round_trip(
    world: MPI.Intracomm, peer: int, count_bytes: int, times: int
) -> float:
    """Returns the best time of some round trips, in seconds one way."""
    data = np.zeros(count_bytes, np.uint8)
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        if world.rank < peer:
            world.Send(data, peer)
            world.Recv(data, peer)
        else:
            world.Recv(data, peer)
            world.Send(data, peer)
        best = min(best, time.perf_counter() - start)
    return best / 2


class _Report:
    """Prints the report, on rank 0 only."""

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks

    def heading(self, text: str) -> None:
        if self._speaks:
            print(text, flush=True)

    def line(self, what: str, text: str = "") -> None:
        self.heading(f"  {what:<36}{text}".rstrip())

    def layout(self, places: Sequence[_Place]) -> None:
        self.heading(
            ", ".join(" ".join(version) for version in places[0].versions)
        )
        self.heading("Hosts")
        for host, ranks in _ranks_by_host(places).items():
            self.line(
                host,
                f"{_name_ranks(ranks)}, {places[ranks[0]].host_cores} cores",
            )

    def check(
        self, name: str, complaints: Sequence[str | None] | None
    ) -> list[str]:
        by_text: dict[str, list[int]] = {}
        for rank, complaint in enumerate(complaints or []):
            if complaint is not None:
                by_text.setdefault(complaint, []).append(rank)
        self.line(name, "FAILED" if by_text else "ok")
        return [
            f"{name}, {_name_ranks(ranks)}: {text}"
            for text, ranks in by_text.items()
        ]

    def collective_speed(self, size: int, small: float, large: float) -> None:
        # In a ring allreduce each link carries 2 (n - 1) / n buffers.
        bandwidth = 2 * (size - 1) / size * _LARGE_BYTES / large / 1e9
        self.line("allreduce of 4 bytes", f"{small * 1e6:.0f} us")
        self.line(
            f"allreduce of {_LARGE_BYTES >> 20} MiB",
            f"{large * 1e3:.0f} ms, {bandwidth:.2f} GB/s on each link",
        )

    def links(self, links: Sequence[_Link]) -> None:
        for link in links:
            where = "" if link.same_host else ", another host"
            self.line(
                f"MPI, ranks {link.source} and {link.target}{where}",
                f"{link.latency_us:.0f} us, "
                f"{link.gigabytes_per_second:.2f} GB/s",
            )

    def advice(self, advice: Sequence[str]) -> None:
        self.heading("To mend")
        for text in advice or ["nothing"]:
            self.line(text)


def _ranks_by_host(places: Sequence[_Place]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place.host, []).append(rank)
    return hosts


def _name_ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _advice(places: Sequence[_Place], links: Sequence[_Link]) -> list[str]:
    """Returns advice on the problems that the test has found."""
    advice = []
    for index, (name, version) in enumerate(places[0].versions):
        others = [
            rank
            for rank, place in enumerate(places)
            if place.versions[index][1] != version
        ]
        if others:
            advice.append(
                f"{name} is {version} on rank 0, but not on "
                f"{_name_ranks(others)}: install the same on every host."
            )
    for host, ranks in _ranks_by_host(places).items():
        here = places[ranks[0]]
        if len(ranks) > here.host_cores:
            advice.append(
                f"{host} runs {len(ranks)} ranks on {here.host_cores} cores: "
                f"they take turns. Start {here.host_cores} or fewer there."
            )
        elif here.cores == 1 < here.host_cores // len(ranks):
            advice.append(
                f"{_name_ranks(ranks)} may use one core each of "
                f"{here.host_cores}, bound to it by mpirun: use tfringrun, or "
                "pass --bind-to none."
            )
    for same_host in (True, False):
        alike = [link for link in links if link.same_host is same_host]
        if not alike:
            continue
        middle = float(np.median([x.gigabytes_per_second for x in alike]))
        advice += [
            f"the link of ranks {link.source} and {link.target} "
            f"({places[link.source].host}, {places[link.target].host}) has "
            f"{link.gigabytes_per_second:.2f} GB/s, the others {middle:.2f}: "
            "the whole ring waits for it. Look at that host's network or load."
            for link in alike
            if link.gigabytes_per_second * _SLOW_LINK < middle
        ]
    return advice


if __name__ == "__main__":
    sys.exit(main())

"""Figures of this rank, for whoever watches the job, by prometheus_client."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from absl import logging

from tfring._core import native, runtime, settings
from tfring._core.errors import NotInitializedError


@dataclasses.dataclass(frozen=True)
class EngineTotals:
    """See `Statistics::Totals` in tfring_ops/engine/statistics.h."""

    requests: int
    negotiate_ns: int
    buckets: int
    count_bytes: int
    running_ns: int
    exposed_ns: int
    waits: int
    stalls: int


@dataclasses.dataclass
class _Steps:
    count: int = 0
    seconds: float = 0.0


_steps = _Steps()
_generation = 0
_lock = threading.Lock()
_server: Server | None = None


def start_counting() -> None:
    """Makes the engines count from now until the process ends."""
    native.capi().tfring_statistics_start()


def engine_totals() -> EngineTotals:
    """Returns the sums over this rank's engines since `start_counting`."""
    count = len(dataclasses.fields(EngineTotals))
    fields = (ctypes.c_int64 * count)()
    native.capi().tfring_statistics(fields, count)
    return EngineTotals(*fields)


def add_steps(count: int, seconds: float) -> None:
    """Counts steps of training, which have taken so long together."""
    with _lock:
        _steps.count += count
        _steps.seconds += seconds


def steps() -> tuple[int, float]:
    """How many steps `add_steps` has counted, and their seconds."""
    with _lock:
        return _steps.count, _steps.seconds


def generation() -> int:
    """How often the job has started again without a lost rank."""
    return _generation


def missing_client(asker: str) -> ImportError | None:
    """Returns the error of a rank that cannot serve figures; None if it can.

    Args:
        asker: The setting or the argument that asks for them.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        return ImportError(
            f"{asker} takes the package prometheus_client, which cannot be "
            f"imported ({error}): pip install prometheus_client"
        )
    return None


class _Figures:
    """This rank's figures at the time of a scrape, labelled with its rank."""

    def collect(self) -> Iterator[Any]:
        """Yields them to the registry; none once the rank has left the job."""
        with contextlib.suppress(NotInitializedError):
            yield from _families()


def _families() -> Iterator[Any]:
    from prometheus_client import core

    gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
    labels = {
        "rank": str(runtime.rank()),
        "local_rank": str(runtime.local_rank()),
    }
    totals = engine_totals()
    families: list[tuple[Any, str, str, tuple[float, ...]]] = [
        (gauge, "size", "Ranks of the job.", (runtime.size(),)),
        (
            gauge,
            "generation",
            "How often the job has started again without a lost rank.",
            (_generation,),
        ),
        (
            counter,
            "requests_total",
            "Collectives on which the ranks have agreed.",
            (totals.requests,),
        ),
        (
            counter,
            "negotiation_seconds_total",
            "Time of requests until all ranks had sent them; least on the "
            "rank that the others wait for.",
            (totals.negotiate_ns / 1e9,),
        ),
        (
            counter,
            "buckets_total",
            "Requests or groups of them that ran together.",
            (totals.buckets,),
        ),
        (
            counter,
            "bytes_total",
            "Bytes of this rank's tensors in them.",
            (totals.count_bytes,),
        ),
        (
            counter,
            "running_seconds_total",
            "Time in which a bucket ran.",
            (totals.running_ns / 1e9,),
        ),
        (
            counter,
            "exposed_seconds_total",
            "The part of it in which an operation waited for a result.",
            (totals.exposed_ns / 1e9,),
        ),
        (
            counter,
            "stalls_total",
            "Reports of a collective that some ranks have not called.",
            (totals.stalls,),
        ),
        (
            core.SummaryMetricFamily,
            "step_seconds",
            "Steps of training that MonitorCallback has seen.",
            steps(),
        ),
    ]
    for kind, name, text, values in families:
        family = kind(f"tfring_{name}", text, labels=labels)
        family.add_metric(labels.values(), *values)
        yield family


class Server:
    """Serves this rank's figures at /metrics, from a thread, until `close`.

    Args:
        address: The address to listen at.
        port: A port of it.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, address: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        # Not the process's own, which has figures of Python's and the script's.
        registry = CollectorRegistry()
        registry.register(_Figures())
        self._http, self._thread = start_http_server(port, address, registry)

    def close(self) -> None:
        """Ends it, and gives the port back."""
        if native.is_disowned():  # Its thread is this process's parent's.
            return
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def serve(address: str, port: int) -> Server | None:
    """Counts and serves at `port` plus this rank's `local_rank`.

    Returns:
        None if that cannot be; then it warns, and training goes on unwatched.
    """
    start_counting()
    own = port + runtime.local_rank()
    try:
        return Server(address, own)
    except (OSError, OverflowError) as error:
        logging.warning(
            "tfring: rank %d cannot serve its figures at %s, port %d: %s. "
            "Choose another TFRING_METRICS_PORT: each rank of a machine takes "
            "that plus its local rank.",
            runtime.rank(),
            address,
            own,
            error,
        )
        return None


def serve_where_asked() -> None:
    """Serves if rank 0's settings say so, until `shutdown`. Collective.

    Raises:
        ImportError: prometheus_client is not installed, here or on another
            rank.
    """
    global _server
    job = runtime.job()
    endpoint = job.agreed(settings.metrics_endpoint())
    if endpoint is None:
        return
    job.raise_everywhere(missing_client("TFRING_METRICS_PORT"))
    # A rank that is still to join has no place on its machine yet.
    if not runtime.is_beside():
        _server = serve(*endpoint)


@runtime.at_shutdown
def _stop() -> None:
    global _server
    if _server is not None:
        _server.close()
        _server = None


@runtime.after_restart
def _go_on_with_the_ranks_left() -> None:
    global _generation
    _generation += 1
    # A rank may have another place on its machine now.
    serve_where_asked()

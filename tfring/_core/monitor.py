"""Figures of this rank, for whoever watches the job; Prometheus's text of them.

Reference: Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import ctypes
import dataclasses
import http.server
import socket
import threading
from typing import Any

from absl import logging

from tfring._core import native, runtime, settings

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# So long a client may take to ask.
_CLIENT_SECONDS = 10


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
    """Has the engines count from here on, for good."""
    native.capi().tfring_statistics_start()


def engine_totals() -> EngineTotals:
    """Sums of what this rank's engines have done since `start_counting`."""
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


def prometheus_text() -> str:
    """This rank's figures, labelled with its rank."""
    totals = engine_totals()
    step_count, step_seconds = steps()
    figures: list[tuple[str, str, str, dict[str, float]]] = [
        ("size", "gauge", "Ranks of the job.", {"": runtime.size()}),
        (
            "generation",
            "gauge",
            "How often the job has started again without a lost rank.",
            {"": _generation},
        ),
        (
            "requests_total",
            "counter",
            "Collectives on which the ranks have agreed.",
            {"": totals.requests},
        ),
        (
            "negotiation_seconds_total",
            "counter",
            "Time of requests until all ranks had sent them; least on the "
            "rank that the others wait for.",
            {"": totals.negotiate_ns / 1e9},
        ),
        (
            "buckets_total",
            "counter",
            "Requests or groups of them that ran together.",
            {"": totals.buckets},
        ),
        (
            "bytes_total",
            "counter",
            "Bytes of this rank's tensors in them.",
            {"": totals.count_bytes},
        ),
        (
            "running_seconds_total",
            "counter",
            "Time in which a bucket ran.",
            {"": totals.running_ns / 1e9},
        ),
        (
            "exposed_seconds_total",
            "counter",
            "The part of it in which an operation waited for a result.",
            {"": totals.exposed_ns / 1e9},
        ),
        (
            "stalls_total",
            "counter",
            "Reports of a collective that some ranks have not called.",
            {"": totals.stalls},
        ),
        (
            "step_seconds",
            "summary",
            "Steps of training that MonitorCallback has seen.",
            {"_count": step_count, "_sum": step_seconds},
        ),
    ]
    labels = f'{{rank="{runtime.rank()}",local_rank="{runtime.local_rank()}"}}'
    lines = []
    for name, kind, text, values in figures:
        lines.append(f"# HELP tfring_{name} {text}")
        lines.append(f"# TYPE tfring_{name} {kind}")
        lines += [
            f"tfring_{name}{suffix}{labels} {value!r}"
            for suffix, value in values.items()
        ]
    return "\n".join(lines) + "\n"


class Server:
    """Serves `prometheus_text` at /metrics, from a thread, until `close`.

    Args:
        address: The address to listen at.
        port: A port of it; 0 takes a free one.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, address: str, port: int) -> None:
        kind = _HttpServer6 if ":" in address else _HttpServer
        self._http = kind((address, port), _Handler)
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.1,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends it, and gives the port back."""
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
    """Serves if rank 0's settings say so, until `shutdown`. Collective."""
    global _server
    endpoint = runtime.job().agreed(settings.metrics_endpoint())
    # A rank that is still to join has no place on its machine yet.
    if endpoint is not None and not runtime.is_beside():
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


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _CLIENT_SECONDS

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "Only /metrics is here.")
            return
        try:
            body = prometheus_text().encode()
        except ValueError as error:  # it has just left the job
            self.send_error(503, str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing: a scrape is no news."""


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6

"""Statistics of this rank, for the script and for Prometheus."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging

from tfring._core import native, runtime, settings
from tfring._core.errors import NotInitializedError


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of this rank, which only grow: see `tfring.statistics`.

    The bytes sent and the waits for input are counted from the beginning of the
    process. The other figures are counted from the first call of
    `tfring.statistics` on, or from `init` with the setting
    `TFRING_METRICS_PORT`.

    Attributes:
        requests: Collectives that the ranks have agreed on.
        negotiation_seconds: The time of requests until all ranks had sent them;
            least on the rank that the others wait for.
        buckets: Requests or groups of them that ran together.
        tensor_bytes: The bytes of this rank's tensors in them.
        running_seconds: The time while a bucket ran.
        exposed_seconds: The part of it while an operation waited for a result.
        waits: How often an operation waited for a result.
        stalls: Reports of a collective that some ranks have not called.
        steps: How often the name of a collective has come again. In a training
            that reduces each gradient once per step, that is the number of
            steps.
        sent_bytes: By kind, the bytes that this rank has sent to other ranks:
            "allreduce", "allgather", "broadcast", "reducescatter", "alltoall",
            "adasum", and "control" for the ranks' negotiation, heartbeats and
            the measurement of links. Barriers and joins are negotiation alone.
            Headers of the network are not counted, nor are the bytes that NCCL
            or CUDA IPC moves between GPUs.
        sent_bytes_between_machines: The part of `sent_bytes` to other machines.
        input_seconds: The time in iterators of `tf.data`, which `fit` reads
            arrays and `PyDataset` by, too: how long training has waited for its
            input.
    """

    requests: int
    negotiation_seconds: float
    buckets: int
    tensor_bytes: int
    running_seconds: float
    exposed_seconds: float
    waits: int
    stalls: int
    steps: int
    sent_bytes: Mapping[str, int]
    sent_bytes_between_machines: Mapping[str, int]
    input_seconds: float


# The number of training steps, and the seconds that they took.
_steps = (0, 0.0)
_generation = 0
_lock = threading.Lock()
_server: Server | None = None


def start_counting() -> None:
    """Makes the engines count until `stop_counting` is called as often."""
    native.capi().tfring_statistics_start()


def stop_counting() -> None:
    """Undoes one call of `start_counting`."""
    native.capi().tfring_statistics_stop()


def statistics() -> Statistics:
    """Returns how much this rank has sent, and how long collectives took.

    The difference of two results covers the time between the calls. Each rank
    has its own figures. Any rank may call this at any time, because nothing is
    sent. The figures include all process sets, and the earlier jobs of this
    process.

    Returns:
        The figures until now.

    Raises:
        NotInitializedError: `init` has not been called.

    Example:

    ```python
    import tensorflow as tf
    import tfring

    tfring.init()
    before = tfring.statistics()
    tfring.allreduce(tf.ones([1_000_000]))
    after = tfring.statistics()
    sent = after.sent_bytes["allreduce"] - before.sent_bytes["allreduce"]
    print(f"rank {tfring.rank()} sent {sent / 1e6:.2f} MB")
    ```
    """
    runtime.place()
    start_counting()
    return current()


def current() -> Statistics:
    """Returns `statistics` without starting to count, even outside of a job."""
    text = native.capi().tfring_statistics().decode()
    totals, *kinds = [line.split("\t") for line in text.splitlines()]
    requests, negotiate_ns, buckets, tensor_bytes, *rest = map(int, totals)
    running_ns, exposed_ns, waits, stalls, steps = rest
    sent: dict[str, int] = {}
    between: dict[str, int] = {}
    for kind, within_bytes, between_bytes in kinds:
        between[kind] = between.get(kind, 0) + int(between_bytes)
        both_bytes = int(within_bytes) + int(between_bytes)
        sent[kind] = sent.get(kind, 0) + both_bytes
    return Statistics(
        requests,
        negotiate_ns / 1e9,
        buckets,
        tensor_bytes,
        running_ns / 1e9,
        exposed_ns / 1e9,
        waits,
        stalls,
        steps,
        sent,
        between,
        native.capi().tfring_input_seconds(),
    )


def add_steps(count: int, seconds: float) -> None:
    """Counts training steps, and the seconds that they took together."""
    global _steps
    with _lock:
        _steps = (_steps[0] + count, _steps[1] + seconds)


def steps() -> tuple[int, float]:
    """Returns the steps that `add_steps` has counted, and their seconds."""
    return _steps


def generation() -> int:
    """How often the job has started again without a lost rank."""
    return _generation


def _missing_client() -> ImportError | None:
    """Returns why this rank cannot serve figures; None if it can."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        return ImportError(
            "TFRING_METRICS_PORT takes the package prometheus_client, which "
            f"cannot be imported ({error}): pip install prometheus_client"
        )
    return None


class _Figures:
    """This rank's figures at the time of a scrape, labelled with its rank."""

    def collect(self) -> Iterator[Any]:
        """Yields the figures for a scrape; none outside of a job."""
        with contextlib.suppress(NotInitializedError):
            yield from _families()


# The fields of `Statistics` that are counters, with their help texts.
_COUNTERS = {
    "requests": "Collectives on which the ranks have agreed.",
    "negotiation_seconds": (
        "Time of requests until all ranks had sent them; least on the rank "
        "that the others wait for."
    ),
    "buckets": "Requests or groups of them that ran together.",
    "tensor_bytes": (
        "Bytes of this rank's tensors in them; sent_bytes has the wire's."
    ),
    "running_seconds": "Time in which a bucket ran.",
    "exposed_seconds": (
        "The part of it in which an operation waited for a result."
    ),
    "stalls": "Reports of a collective that some ranks have not called.",
    "input_seconds": "Time in which training waited for its input.",
}


def _families() -> Iterator[Any]:
    from prometheus_client import core

    gauge, counter = core.GaugeMetricFamily, core.CounterMetricFamily
    labels = {
        "rank": str(runtime.rank()),
        "local_rank": str(runtime.local_rank()),
    }

    def family(kind: Any, name: str, text: str, *values: float) -> Any:
        made = kind(f"tfring_{name}", text, labels=labels)
        made.add_metric(labels.values(), *values)
        return made

    totals = current()
    yield family(gauge, "size", "Ranks of the job.", runtime.size())
    yield family(
        gauge,
        "generation",
        "How often the job has started again without a lost rank.",
        _generation,
    )
    for field, text in _COUNTERS.items():
        name = "bytes" if field == "tensor_bytes" else field
        yield family(counter, f"{name}_total", text, getattr(totals, field))
    yield family(
        core.SummaryMetricFamily,
        "step_seconds",
        "Steps of training that MonitorCallback has seen.",
        *steps(),
    )
    sent = counter(
        "tfring_sent_bytes_total",
        "Bytes that this rank has sent, to its machine or over the network.",
        labels=[*labels, "kind", "to"],
    )
    for kind, all_bytes in totals.sent_bytes.items():
        between = totals.sent_bytes_between_machines[kind]
        for to, value in (
            ("machine", all_bytes - between),
            ("network", between),
        ):
            sent.add_metric([*labels.values(), kind, to], value)
    yield sent


class Server:
    """Serves this rank's figures at /metrics, from a thread, until `close`.

    Raises:
        OSError: The server cannot listen at the address.
    """

    def __init__(self, address: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        # Use a registry of its own: the default one has figures of Python and
        # the script.
        registry = CollectorRegistry()
        registry.register(_Figures())
        self._http, self._thread = start_http_server(port, address, registry)

    def close(self) -> None:
        """Ends the server, and frees the port."""
        if native.is_disowned():  # the thread is in the parent process
            return
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def serve_where_asked() -> None:
    """Counts and serves figures until `shutdown`, if rank 0's settings say so.

    Each rank serves at the setting's port plus its `local_rank`. A rank that
    cannot listen warns, and serves nothing. Collective.

    Raises:
        ImportError: prometheus_client is not installed, here or on another
            rank.
    """
    global _server
    job = runtime.job()
    endpoint = job.agreed(settings.metrics_endpoint())
    if endpoint is None:
        return
    job.raise_everywhere(_missing_client())
    # A joiner has no place on its machine yet.
    if runtime.is_beside():
        return
    start_counting()
    address, port = endpoint[0], endpoint[1] + runtime.local_rank()
    try:
        _server = Server(address, port)
    except (OSError, OverflowError) as error:
        logging.warning(
            "tfring: rank %d cannot serve its figures at %s, port %d: %s. "
            "Choose another TFRING_METRICS_PORT: each rank of a machine takes "
            "that plus its local rank.",
            runtime.rank(),
            address,
            port,
            error,
        )


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
    # After a restart a rank may have another place on its machine.
    serve_where_asked()

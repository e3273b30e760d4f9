"""Times training steps of hosts with slow links, for several exchanges.

  .venv/bin/python benchmarks/slow_links.py --rate_mbit=100 --json=slow.json

The hosts are network namespaces of this machine: it takes root
(tools/host_network.py). The model is an MLP of 27 million weights. In the same
network the peers reduce as many bytes, for comparison. It prints the bytes of
the ranks' messages, and the bytes that the interfaces have sent.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from network_bench import HostNetwork, bench_rows, missing

HOSTS = flags.DEFINE_integer("hosts", 2, "The number of hosts.")
RATE_MBIT = flags.DEFINE_integer(
    "rate_mbit", 100, "Of each host's link, in each direction, in Mbit/s."
)
WIDTH = flags.DEFINE_integer("width", 3456, "Of the model's hidden layers.")
SYNC = flags.DEFINE_list("sync", "none,diloco:50", "As tfring-bench's.")
COMPRESSION = flags.DEFINE_list(
    "compression", "none,bf16,powersgd:4", "As tfring-bench's."
)
PEERS = flags.DEFINE_string("peers", "mpi,gloo", "As tfring-bench's.")
ROUNDS = flags.DEFINE_integer("rounds", 3, "How many turns each has.")
JSON = flags.DEFINE_string("json", None, "A file for all figures.")


@dataclasses.dataclass(frozen=True)
class Figure:
    """One way to train, or one peer's exchange."""

    who: str
    seconds: float
    sent_bytes: float  # by a rank, in a step
    times_faster: float  # than gradients in every step


def measure(network: HostNetwork) -> tuple[list[Figure], int]:
    """Returns the figures, and the bytes that the interfaces have sent."""
    before = sent_by_interfaces(network)
    rounds = f"--rounds={ROUNDS.value}"
    steps = bench_rows(
        network,
        "step",
        "--model=mlp",
        f"--width={WIDTH.value}",
        "--batch_size=8",
        "--steps=1",
        f"--sync={','.join(SYNC.value)}",
        f"--compression={','.join(COMPRESSION.value)}",
        rounds,
    )
    sent = sent_by_interfaces(network) - before
    weights = sum(
        (rows + 1) * columns
        for rows, columns in (
            (784, WIDTH.value),
            (WIDTH.value, WIDTH.value),
            (WIDTH.value, WIDTH.value),
            (WIDTH.value, 10),
        )
    )
    peers = bench_rows(
        network,
        "allreduce",
        f"--min_bytes={4 * weights}",
        f"--max_bytes={4 * weights}",
        "--modes=function",
        f"--peers={PEERS.value}",
        rounds,
    )
    every_step = steps[0]["seconds"]["median"]
    return [
        Figure(
            row["who"],
            row["seconds"]["median"],
            row["sent_bytes"],
            every_step / row["seconds"]["median"],
        )
        for row in [*steps, *peers]
    ], sent


def sent_by_interfaces(network: HostNetwork) -> int:
    """Returns the bytes that all hosts have sent, headers included."""
    total = 0
    for host in network.hosts:
        for line in (network.proc(host) / "net/dev").read_text().splitlines():
            name, _, numbers = line.strip().partition(":")
            if numbers and name != "lo":
                total += int(numbers.split()[8])
    return total


def table(figures: Sequence[Figure]) -> str:
    width = max(len(figure.who) for figure in figures)
    return "\n".join(
        f"{f.who:{width}}  {1000 * f.seconds:8.1f} ms  "
        f"{f.sent_bytes / 1e6:8.3f} MB  {f.times_faster:5.1f} times"
        for f in figures
    )


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"expected flags only, got {arguments[1:]}.")
    if reason := missing():
        raise app.UsageError(f"there can be no hosts here: {reason}.")
    with HostNetwork(HOSTS.value, rate=f"{RATE_MBIT.value}mbit") as network:
        figures, sent = measure(network)
    print(table(figures))
    print(f"The interfaces have sent {sent / 1e6:.1f} MB in all steps.")
    if JSON.value:
        content = {
            "rate_mbit": RATE_MBIT.value,
            "hosts": HOSTS.value,
            "sent_by_interfaces": sent,
            "figures": [dataclasses.asdict(figure) for figure in figures],
        }
        Path(JSON.value).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)

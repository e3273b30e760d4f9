"""Times training steps of hosts with slow links, for several exchanges.

  .venv/bin/python benchmarks/slow_links.py --rate_mbit=100 --json=slow.json

The hosts are network namespaces of this machine: it takes root
(tools/host_network.py). The model is an MLP of 27 million weights. In the same
network the peers reduce as many bytes, for comparison. It prints the bytes of
the ranks' messages, and the bytes that the interfaces have sent.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import program
from exchanges import add_flags

STEPS = Path(__file__).with_name("steps.py")


@dataclasses.dataclass(frozen=True)
class Figure:
    """The result of one way to train, or of one peer's exchange."""

    who: str
    seconds: float
    sent_bytes: float  # by a rank, in a step
    times_faster: float  # than gradients in every step


def measure(
    network: program.HostNetwork, options: argparse.Namespace
) -> tuple[list[Figure], int]:
    """Returns the figures, and the bytes that the interfaces have sent."""
    before = sent_by_interfaces(network)
    rounds = f"--rounds={options.rounds}"
    width = options.width
    steps = program.rows_between_hosts(
        network,
        [
            *(STEPS, "--model=mlp", f"--width={width}"),
            *("--batch_size=8", "--steps=1", rounds),
            f"--sync={options.sync}",
            f"--compression={options.compression}",
        ],
    )
    sent = sent_by_interfaces(network) - before
    layers = ((784, width), (width, width), (width, width), (width, 10))
    weight_bytes = 4 * sum((rows + 1) * columns for rows, columns in layers)
    peers = program.rows_between_hosts(
        network,
        [
            *("-m", "tfring.bench", "allreduce", "--modes=function"),
            f"--min_bytes={weight_bytes}",
            f"--max_bytes={weight_bytes}",
            f"--peers={options.peers}",
            rounds,
        ],
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


def sent_by_interfaces(network: program.HostNetwork) -> int:
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


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument(
        "--rate_mbit",
        type=int,
        default=100,
        help="of each host's link, in each direction, in Mbit/s",
    )
    parser.add_argument(
        "--width", type=int, default=3456, help="of the model's hidden layers"
    )
    add_flags(parser, sync="none,diloco:50", compression="none,bf16,powersgd:4")
    parser.add_argument(
        "--peers", default="mpi,gloo", help="as that of tfring-bench"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    options = parser.parse_args()
    with program.network(options.hosts, options.rate_mbit) as network:
        figures, sent = measure(network, options)
    print(table(figures))
    print(f"The interfaces have sent {sent / 1e6:.1f} MB in all steps.")
    program.write_figures(
        options,
        sent_by_interfaces=sent,
        figures=[dataclasses.asdict(figure) for figure in figures],
    )


if __name__ == "__main__":
    main()

"""Times allreduces between hosts with links of a bounded rate, with peers.

  .venv/bin/python benchmarks/between_hosts.py --hosts=2,4,8 --json=hosts.json

The hosts are network namespaces of this machine, which takes root
(tools/host_network.py). A figure is the share of the bound: the time that
2 (N - 1) / N times the bytes, for N hosts, take at the rate of a link, over the
measured time. The headers of TCP and Ethernet alone cost 4.6% of a link.

The link must be the limit, and not the cores, which the hosts share: choose
--rate_mbit so that the CPU time of all ranks together is well below the time
that the cores have. The best share does not depend on the rate.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import plots
import program


@dataclasses.dataclass(frozen=True)
class Figure:
    """The result of one contestant on some hosts."""

    hosts: int
    who: str
    median_seconds: float
    median_share: float
    best_share: float
    cpu_seconds: float  # of each rank


def measure(hosts: int, options: argparse.Namespace) -> list[Figure]:
    """Runs tfring-bench across the hosts, over TCP and over MPI."""
    figures = []
    ways = {"": (options.peers, {})}
    if options.over_mpi:
        ways[", over MPI"] = ("", {"TFRING_BETWEEN_HOSTS": "mpi"})
    with program.network(hosts, options.rate_mbit) as network:
        for how, (peers, env) in ways.items():
            rows = program.rows_between_hosts(
                network,
                [
                    *("-m", "tfring.bench", "allreduce", "--modes=function"),
                    f"--min_bytes={options.bytes}",
                    f"--max_bytes={options.bytes}",
                    f"--peers={peers}",
                    f"--rounds={options.rounds}",
                ],
                ranks=options.ranks,
                env=env,
            )
            figures += [
                figure(hosts, row["who"] + how, row, options.rate_mbit)
                for row in rows
                if row["bus_bandwidth"]
            ]
    return figures


def figure(hosts: int, who: str, row: dict, rate_mbit: int) -> Figure:
    sent_bits = 8 * row["count_bytes"] * 2 * (hosts - 1) / hosts
    bound = sent_bits / (rate_mbit * 1e6)
    seconds = row["seconds"]
    return Figure(
        hosts=hosts,
        who=who,
        median_seconds=seconds["median"],
        median_share=bound / seconds["median"],
        best_share=bound / seconds["least"],
        cpu_seconds=row["cpu_seconds"],
    )


def table(figures: Sequence[Figure]) -> str:
    lines = [
        f"{'hosts':>5}  {'':24}  {'median':>8}  {'share':>6}  {'best':>6}  "
        f"{'CPU':>7}"
    ]
    lines += [
        f"{f.hosts:5}  {f.who:24}  {f.median_seconds:6.2f} s  "
        f"{f.median_share:6.1%}  {f.best_share:6.1%}  {f.cpu_seconds:5.2f} s"
        for f in figures
    ]
    return "\n".join(lines)


def growth(figures: Sequence[Figure]) -> dict[str, float]:
    """Returns the time on the most hosts over that on the fewest."""
    fewest = min(f.hosts for f in figures)
    most = max(f.hosts for f in figures)
    seconds = {(f.hosts, f.who): f.median_seconds for f in figures}
    return {
        who: seconds[most, who] / seconds[fewest, who]
        for hosts, who in seconds
        if hosts == fewest and (most, who) in seconds
    }


def main() -> None:
    parser = program.parser(__doc__)
    parser.add_argument(
        "--hosts",
        type=program.numbers,
        default="2,4,8",
        help="numbers of hosts",
    )
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument(
        "--rate_mbit",
        type=int,
        default=250,
        help="of each host's link, in each direction, in Mbit/s",
    )
    parser.add_argument("--bytes", default="64m", help="of the tensor")
    parser.add_argument(
        "--peers", default="mpi,gloo", help="as that of tfring-bench"
    )
    parser.add_argument(
        "--over_mpi",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tfring runs once more, with MPI between the hosts",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument(
        "--plot",
        type=Path,
        help="a picture of the shares, as PNG or SVG; needs matplotlib",
    )
    options = parser.parse_args()
    figures = [f for hosts in options.hosts for f in measure(hosts, options)]
    print(table(figures))
    for who, factor in growth(figures).items():
        print(f"{who}: {factor:.2f} times as long on the most hosts")
    program.write_figures(
        options,
        figures=[dataclasses.asdict(f) for f in figures],
        growth=growth(figures),
    )
    if options.plot:
        plots.plot_shares(
            options.plot, [(f.hosts, f.who, f.median_share) for f in figures]
        )


if __name__ == "__main__":
    main()

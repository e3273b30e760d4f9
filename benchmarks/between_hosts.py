"""Times allreduces between hosts with links of a bounded rate, with peers.

  .venv/bin/python benchmarks/between_hosts.py --hosts=2,4,8 --json=hosts.json

The hosts are network namespaces of this machine: it takes root
(tools/host_network.py). A figure is the share of the bound: the time that
2 (N - 1) / N times the bytes, for N hosts, take at the rate of a link, by the
time that it took. The headers of TCP and Ethernet alone cost 4.6% of a link.

The link must be the limit, and not the cores, which the hosts share: choose
--rate_mbit so that the CPU time of all ranks together is well below the time
that the cores have. The best share does not depend on the rate.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from network_bench import HostNetwork, bench_rows, missing

HOSTS = flags.DEFINE_list("hosts", "2,4,8", "Numbers of hosts.")
RANKS = flags.DEFINE_integer("ranks", 1, "On each host.")
RATE_MBIT = flags.DEFINE_integer(
    "rate_mbit", 250, "Of each host's link, in each direction, in Mbit/s."
)
BYTES = flags.DEFINE_string("bytes", "64m", "The size of the tensor.")
PEERS = flags.DEFINE_string("peers", "mpi,gloo", "As tfring-bench's.")
TCP = flags.DEFINE_bool(
    "tcp",
    True,
    "Whether tfring runs once more without MPI, as in elastic jobs.",
)
ROUNDS = flags.DEFINE_integer("rounds", 3, "How many turns each has.")
JSON = flags.DEFINE_string("json", None, "A file for all figures.")
PLOT = flags.DEFINE_string(
    "plot", None, "A picture of the shares, as PNG or SVG; needs matplotlib."
)


@dataclasses.dataclass(frozen=True)
class Figure:
    """The result of one contestant on some hosts."""

    hosts: int
    who: str
    median_seconds: float
    median_share: float
    best_share: float
    cpu_seconds: float  # of each rank


def measure(hosts: int) -> list[Figure]:
    """Runs tfring-bench across the hosts."""
    with HostNetwork(hosts, rate=f"{RATE_MBIT.value}mbit") as network:
        figures = run_job(network, [], f"--peers={PEERS.value}")
        if TCP.value:
            elastic = ["--elastic", "--min-np", str(hosts * RANKS.value)]
            for each in run_job(network, elastic, "--peers="):
                who = f"{each.who}, no MPI"
                figures.append(dataclasses.replace(each, who=who))
    return figures


def run_job(
    network: HostNetwork, options: Sequence[str], peers: str
) -> list[Figure]:
    rows = bench_rows(
        network,
        "allreduce",
        f"--min_bytes={BYTES.value}",
        f"--max_bytes={BYTES.value}",
        "--modes=function",
        peers,
        f"--rounds={ROUNDS.value}",
        ranks=RANKS.value,
        launch=options,
    )
    hosts = len(network.hosts)
    return [figure(hosts, row) for row in rows if row["bus_bandwidth"]]


def figure(hosts: int, row: dict) -> Figure:
    sent_bits = 8 * row["count_bytes"] * 2 * (hosts - 1) / hosts
    bound = sent_bits / (RATE_MBIT.value * 1e6)
    seconds = row["seconds"]
    return Figure(
        hosts=hosts,
        who=row["who"],
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


def plot(path: Path, figures: Sequence[Figure]) -> None:
    from tfring.bench import plots

    canvas, axes = plots.canvas(6, 3.6)
    for who in dict.fromkeys(f.who for f in figures):
        of_who = [f for f in figures if f.who == who]
        plots.line(
            axes,
            who,
            [str(f.hosts) for f in of_who],
            [100 * f.median_share for f in of_who],
        )
    axes.set_xlabel("hosts")
    axes.set_ylabel("% of the bound, by the median time")
    axes.set_ylim(0, 100)
    plots.name_lines(canvas, axes)
    canvas.savefig(path)


def growth(figures: Sequence[Figure]) -> dict[str, float]:
    """By how much the time grew from the fewest hosts to the most."""
    fewest = min(f.hosts for f in figures)
    most = max(f.hosts for f in figures)
    seconds = {(f.hosts, f.who): f.median_seconds for f in figures}
    return {
        who: seconds[most, who] / seconds[fewest, who]
        for hosts, who in seconds
        if hosts == fewest and (most, who) in seconds
    }


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"expected flags only, got {arguments[1:]}.")
    if reason := missing():
        raise app.UsageError(f"there can be no hosts here: {reason}.")
    figures = []
    for hosts in map(int, HOSTS.value):
        figures += measure(hosts)
    print(table(figures))
    for who, factor in growth(figures).items():
        print(f"{who}: {factor:.2f} times as long on the most hosts")
    if JSON.value:
        content = {
            "rate_mbit": RATE_MBIT.value,
            "ranks_per_host": RANKS.value,
            "figures": [dataclasses.asdict(f) for f in figures],
            "growth": growth(figures),
        }
        Path(JSON.value).write_text(json.dumps(content, indent=1) + "\n")
    if PLOT.value:
        plot(Path(PLOT.value), figures)


if __name__ == "__main__":
    app.run(main)

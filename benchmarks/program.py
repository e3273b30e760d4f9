"""The flags, hosts and figures of a benchmark.

A benchmark makes its parser with `parser`, and ends with `write_figures`, or
with `show_rows` if it has measured in the ranks of one job. gpu.py has a parser
of its own: it also runs where there is nothing else of this folder.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
import host_network  # noqa: E402
import tfring  # noqa: E402
from host_network import HostNetwork  # noqa: E402
from tfring.bench import report  # noqa: E402
from tfring.bench.statistics import Row  # noqa: E402


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with --json, to which a benchmark adds its flags."""
    made = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", type=Path, help="a file for all figures")
    return made


def add_versions(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a benchmark that starts jobs of several versions."""
    parser.add_argument("--starts", type=int, default=10, help="of a version")
    parser.add_argument("--ranks", type=int, default=2, help="of a job")
    parser.add_argument(
        "--trees", type=words, default=".", help="source trees of the versions"
    )


def environment_of(tree: Path) -> dict[str, str]:
    """Returns an environment in which Python imports the version in `tree`."""
    paths = [str(tree), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": ":".join(filter(None, paths))}


def words(text: str) -> list[str]:
    """Returns the words of a flag such as --peers=mpi,gloo."""
    return list(filter(None, text.split(",")))


def numbers(text: str) -> list[int]:
    """Returns the numbers of a flag such as --hosts=2,4,8."""
    return [int(word) for word in words(text)]


def write_figures(options: argparse.Namespace, **figures: Any) -> None:
    """Writes the figures and all flags to --json, if it is given."""
    if options.json:
        flags = {name: str(value) for name, value in vars(options).items()}
        content = {"flags": flags, **figures}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def show_rows(
    options: argparse.Namespace, rows: Sequence[Row], **summary: float
) -> None:
    """Prints and writes the rows and the summary of a job, on rank 0."""
    if tfring.rank() != 0:
        return
    machine = report.machine(tfring.size())
    print(report.describe(machine), report.table(rows), sep="\n")
    for name, value in summary.items():
        print(f"{name}: {value:.3g}")
    write_figures(
        options,
        machine=machine,
        rows=[dataclasses.asdict(row) for row in rows],
        summary=summary,
    )


def network(hosts: int, rate_mbit: int) -> HostNetwork:
    """Returns hosts whose links have a rate, in each direction.

    Raises:
        SystemExit: This machine cannot have them.
    """
    if reason := host_network.missing():
        raise SystemExit(f"There can be no hosts here: {reason}.")
    return HostNetwork(hosts, rate=f"{rate_mbit}mbit")


def run_job(
    program: Sequence[object],
    *,
    launcher: Sequence[str],
    start: Callable[..., Any] = subprocess.Popen,
    **options: Any,
) -> None:
    """Runs a Python program on ranks.

    Args:
        program: The program's file or module, and its arguments.
        launcher: Arguments of tfringrun.
        start: Starts the launcher: `HostNetwork.popen`, on one of its hosts.
        **options: Other arguments of `start`.

    Raises:
        SystemExit: The job failed.
    """
    command = [sys.executable, "-m", "tfring.run", *launcher, sys.executable]
    job = start(
        [*command, *map(str, program)], stdin=subprocess.DEVNULL, **options
    )
    if job.wait() != 0:
        raise SystemExit(f"The job of {' '.join(map(str, program))} failed.")


def rows_of_job(program: Sequence[object], **options: Any) -> list[Any]:
    """Runs a job as `run_job` does, and returns the rows of its --json."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        run_job([*program, f"--json={path}"], **options)
        return list(json.loads(path.read_text())["rows"])


def rows_between_hosts(
    hosts: HostNetwork,
    program: Sequence[object],
    *,
    ranks: int = 1,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Returns `rows_of_job` of a job with `ranks` ranks on each host."""
    return rows_of_job(
        program,
        launcher=["-H", hosts.slots(ranks)],
        start=hosts.popen,
        env={
            "TF_NUM_INTRAOP_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        },
    )

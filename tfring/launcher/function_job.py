"""The launcher of a job of `tfring.run`: `function_job FOLDER`.

It is a process of its own, as a launcher takes over signals and orphans, which
a program or a notebook needs for itself.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tfring.launcher import hosts as hosts_lib, surroundings
from tfring.launcher.output import View
from tfring.launcher.prepare import prepare


@dataclasses.dataclass
class Outcome:
    """The end of the job, for `function` to read."""

    status: int
    ranks: int = 0
    failed_rank: int | None = None  # the one that failed first
    said: str = ""  # one sentence about the failure


def main() -> int:
    """Runs the job; returns its exit status."""
    folder = Path(sys.argv[1])
    order = json.loads((folder / "order.json").read_text())
    outcome, orphaned = _run(folder, order)
    if orphaned:  # Nobody else will.
        shutil.rmtree(folder, ignore_errors=True)
    else:
        (folder / "outcome.json").write_text(
            json.dumps(dataclasses.asdict(outcome))
        )
    return outcome.status


def _run(folder: Path, order: dict[str, Any]) -> tuple[Outcome, bool]:
    """Says also whether the program that wants the results is gone."""
    command = [sys.executable, "-m", "tfring.launcher.function_rank"]
    try:
        surroundings.complete()
        job = prepare(
            [*command, str(folder)],
            ranks=order["ranks"],
            hosts=hosts_lib.parse_hosts(order["hosts"])
            if order["hosts"]
            else [],
            view=View(
                terminals=frozenset(order["terminals"]),
                only_rank=0,
                verbose=order["verbose"],
            ),
            lifeline=sys.stdin.fileno(),
        )
        status = job.run()
    except (OSError, ValueError) as error:
        return Outcome(2, said=str(error)), False
    said = job.failure().removeprefix("tfringrun: ")
    outcome = Outcome(status, job.ranks, job.failed_rank, said)
    return outcome, job.orphaned


if __name__ == "__main__":
    sys.exit(main())

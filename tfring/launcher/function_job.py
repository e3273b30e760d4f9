"""The launcher of a job that runs a function: `function_job OUTCOME`.

It reads its order, a line of JSON, from standard input, and ends the job at the
end of standard input. OUTCOME is a descriptor, to which it writes the job's
outcome as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from tfring.launcher import hosts as hosts_lib, prepare, surroundings
from tfring.launcher.elastic import elastic_job
from tfring.launcher.elastic.driver import Driver
from tfring.launcher.launcher_process import read_order
from tfring.launcher.output import View
from tfring.rendezvous import wire


def main() -> int:
    """Runs the job; returns its exit status."""
    order = read_order()
    view = View(
        terminals=frozenset(order["terminals"]),
        only_rank=order["only_rank"],
        verbose=order["verbose"],
        caller=order["caller"],
    )
    try:
        surroundings.complete()
        run = _run_by_mpi if "hosts" in order else _run_placed
        outcome = run(order, view)
    except (OSError, ValueError) as error:
        outcome = {"status": 2, "said": str(error)}
    with os.fdopen(int(sys.argv[1]), "w") as file:
        json.dump(outcome, file)
    return int(outcome["status"])


def _run_placed(order: dict[str, Any], view: View) -> dict[str, Any]:
    listener = wire.Listener(
        socket.socket(fileno=order["listener"]), order["token"]
    )
    job = elastic_job.placed(
        order["ranks"],
        order["minimum"],
        order["timeout_seconds"],
        interface=listener.address[0],
    )
    driver = Driver(job, view, order["token"], listener)

    def watch() -> None:
        os.read(0, 1)
        driver.stop()

    threading.Thread(target=watch, daemon=True).start()
    status = driver.run()
    return {
        "status": status,
        "ranks": driver.ranks,
        "failed_worker": driver.failed_worker,
        "said": driver.failure(),
    }


def _run_by_mpi(order: dict[str, Any], view: View) -> dict[str, Any]:
    """Runs a job on other machines, whose ranks share the order's folder."""
    folder = Path(order["folder"])
    job = prepare.prepare(
        [sys.executable, "-m", "tfring.launcher.function_rank", str(folder)],
        ranks=order["ranks"],
        hosts=hosts_lib.parse_hosts(order["hosts"]) if order["hosts"] else [],
        view=view,
        lifeline=sys.stdin.fileno(),
    )
    status = job.run()
    if job.orphaned:  # the process that would remove it is gone
        shutil.rmtree(folder, ignore_errors=True)
    failed = job.failed_rank
    return {
        "status": status,
        "ranks": {str(rank): rank for rank in range(job.ranks)},
        "failed_worker": None if failed is None else str(failed),
        "said": job.failure(),
    }


if __name__ == "__main__":
    sys.exit(main())

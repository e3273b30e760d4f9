"""The launcher of placed processes: `placed_job OUTCOME`.

It reads its order, a line of JSON, from standard input, and ends the job at the
end of standard input. OUTCOME is a descriptor, to which it writes the job's
outcome as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any

from tfring.launcher import orders, surroundings
from tfring.launcher.elastic import elastic_job
from tfring.launcher.elastic.driver import Driver
from tfring.launcher.output import View
from tfring.rendezvous import wire


def main() -> int:
    """Runs the job; returns its exit status."""
    order = orders.read()
    try:
        surroundings.complete()
        outcome = _run(order)
    except (OSError, ValueError) as error:
        outcome = {"status": 2, "said": str(error)}
    with os.fdopen(int(sys.argv[1]), "w") as file:
        json.dump(outcome, file)
    return int(outcome["status"])


def _run(order: dict[str, Any]) -> dict[str, Any]:
    listener = wire.Listener(
        socket.socket(fileno=order["listener"]), order["token"]
    )
    job = elastic_job.placed(
        order["ranks"],
        order["minimum"],
        order["maximum"],
        order["timeout_seconds"],
        interface=listener.address[0],
    )
    view = View(
        terminals=frozenset(order["terminals"]),
        only_rank=order["only_rank"],
        verbose=order["verbose"],
        caller=order["caller"],
        shows_hosts=True,
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


if __name__ == "__main__":
    sys.exit(main())

"""Runs tfring-bench with ranks on hosts that are network namespaces."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from host_network import HostNetwork, missing  # noqa: E402

__all__ = ["HostNetwork", "bench_rows", "missing"]


def bench_rows(
    network: HostNetwork,
    command: str,
    *options: str,
    ranks: int = 1,
    launch: Sequence[str] = (),
) -> list[Any]:
    """Returns the rows of tfring-bench's JSON.

    Args:
        network: The hosts.
        command: A command of tfring-bench.
        *options: The flags of that command.
        ranks: The number of ranks on each host.
        launch: Flags of the launcher.

    Raises:
        UsageError: The job failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "figures.json"
        job = network.popen(
            [
                *(sys.executable, "-m", "tfring.run"),
                *("-H", network.slots(ranks), *launch),
                *(sys.executable, "-m", "tfring.bench", command, *options),
                f"--json={path}",
            ],
            env={"TF_NUM_INTRAOP_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
        )
        if job.wait() != 0:
            raise app.UsageError(f"tfring-bench {command} failed.")
        return json.loads(path.read_text())["rows"]

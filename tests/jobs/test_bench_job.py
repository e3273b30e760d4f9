"""tfring-bench measures, on two ranks, and says so."""

import json
import subprocess
import sys

from jobs import TFRINGRUN

BENCH = [sys.executable, "-m", "tfring.bench"]


def test_allreduce(start, tmp_path):
    figures = tmp_path / "figures.json"
    job = start(
        [
            *TFRINGRUN,
            *("-np", "2"),
            *BENCH,
            *("allreduce", "--peers=mpi", "--rounds=2"),
            *("--min_bytes=4k", "--max_bytes=16k", f"--json={figures}"),
        ]
    )
    output, _ = job.communicate(timeout=100)
    assert job.returncode == 0, output
    assert "busbw" in output
    rows = json.loads(figures.read_text())["rows"]
    everyone = {
        *("tfring eager", "tfring function", "empty function"),
        *("tfring in place", "mpi", "mpi in place"),
    }
    assert {(row["case"], row["who"]) for row in rows} == {
        (case, who) for case in ("4 KiB", "16 KiB") for who in everyone
    }
    for row in rows:
        seconds = row["seconds"]
        assert 0 < seconds["least"] <= seconds["median"] <= seconds["most"]
        # Two ranks: each sends as many bytes as the tensor has.
        assert row["bus_bandwidth"] == row["algorithm_bandwidth"]
        assert (row["bus_bandwidth"] > 0) == (row["who"] != "empty function")


def test_one_rank_alone():
    alone = subprocess.run(
        [*BENCH, "allreduce"], capture_output=True, text=True, timeout=60
    )
    assert alone.returncode == 2
    assert "tfringrun -np 2 tfring-bench allreduce" in alone.stderr

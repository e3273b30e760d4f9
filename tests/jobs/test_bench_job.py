"""tfring-bench measures, on two ranks, and says so."""

import json
import subprocess
import sys

import pytest
from jobs import JOB_SECONDS, TFRINGRUN

BENCH = [sys.executable, "-m", "tfring.bench"]


def test_allreduce(run, tmp_path):
    figures = tmp_path / "figures.json"
    output = run(
        [
            *TFRINGRUN,
            *("-np", "2"),
            *BENCH,
            *("allreduce", "--peers=mpi", "--rounds=2"),
            *("--min_bytes=4k", "--max_bytes=16k", f"--json={figures}"),
        ]
    )
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
        if row["who"].startswith("tfring"):
            assert row["sent_bytes"] == row["count_bytes"]
        else:
            assert row["sent_bytes"] == 0


@pytest.mark.thorough
def test_memory_of_sharded_states(run, tmp_path):
    figures = tmp_path / "figures.json"
    output = run(
        [
            *TFRINGRUN,
            *("-np", "2"),
            *BENCH,
            *("memory", "--model=mlp", "--batch_size=16"),
            *("--policies=whole,sharded", "--rounds=1", "--steps=2"),
            f"--json={figures}",
        ]
    )
    assert "bytes of the optimizer, sharded" in output
    summary = json.loads(figures.read_text())["summary"]
    whole, sharded = (
        summary[f"bytes of the optimizer, {who}"]
        for who in ("whole", "sharded")
    )
    assert whole > 8_000_000
    assert sharded <= whole * 0.55


@pytest.mark.thorough
def test_memory_on_one_rank(tmp_path):
    figures = tmp_path / "figures.json"
    alone = subprocess.run(
        [
            *(*BENCH, "memory", "--model=mlp", "--batch_size=2048"),
            *("--policies=none,remat,all,auto", "--rounds=1", "--steps=2"),
            f"--json={figures}",
        ],
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
    )
    assert alone.returncode == 0, alone.stderr
    rows = json.loads(figures.read_text())["rows"]
    peak = {row["who"]: row["added_bytes"] for row in rows}
    assert peak["all"] < peak["remat"] * 0.7
    assert peak["all"] < peak["none"] / 4
    budgets = [who for who in peak if who.startswith("auto")]
    assert len(budgets) == 3
    for who in budgets:
        mebibytes = float(who.removeprefix("auto, ").removesuffix(" MiB"))
        # Allows for four feature maps, because the tensors in flight differ
        # from step to step.
        assert peak[who] < peak["all"] + (mebibytes + 8) * 2**20

"""tfring-bench and benchmarks/memory.py measure, and say so."""

import json
import sys
from pathlib import Path

import pytest
from jobs import TFRINGRUN

MEMORY = Path(__file__).parents[2] / "benchmarks/memory.py"


@pytest.fixture
def bench(run, tmp_path):
    """Returns a function that measures, and gives the output and figures."""

    def bench(*program, launcher=(*TFRINGRUN, "-np", "2")):
        path = tmp_path / "figures.json"
        output = run([*launcher, sys.executable, *program, f"--json={path}"])
        return output, json.loads(path.read_text())

    return bench


def test_allreduce(bench):
    output, figures = bench(
        *("-m", "tfring.bench", "allreduce", "--peers=mpi", "--rounds=2"),
        *("--min_bytes=4k", "--max_bytes=16k"),
    )
    assert "busbw" in output
    rows = figures["rows"]
    everyone = {
        *("tfring eager", "tfring function", "tfring in place"),
        *("empty eager", "empty function", "mpi", "mpi in place"),
    }
    assert {(row["case"], row["who"]) for row in rows} == {
        (case, who) for case in ("4 KiB", "16 KiB") for who in everyone
    }
    for row in rows:
        seconds = row["seconds"]
        assert 0 < seconds["least"] <= seconds["median"] <= seconds["most"]
        # Two ranks: each sends as many bytes as the tensor has.
        assert row["bus_bandwidth"] == row["algorithm_bandwidth"]
        assert (row["bus_bandwidth"] > 0) == (
            not row["who"].startswith("empty")
        )
        if row["who"].startswith("tfring"):
            assert row["sent_bytes"] == row["count_bytes"]
        else:
            assert row["sent_bytes"] == 0


@pytest.mark.thorough
def test_memory_of_sharded_states(bench):
    output, figures = bench(
        *(MEMORY, "--model=mlp", "--batch_size=16"),
        *("--policies=whole,sharded", "--rounds=1", "--steps=2"),
    )
    assert "bytes of states, sharded" in output
    whole, sharded = (
        figures["summary"][f"bytes of states, {who}"]
        for who in ("whole", "sharded")
    )
    assert whole > 8_000_000
    assert sharded <= whole * 0.55


@pytest.mark.thorough
def test_memory_on_one_rank(bench):
    _, figures = bench(
        *(MEMORY, "--model=mlp", "--batch_size=2048"),
        *("--policies=none,remat,all,auto", "--rounds=1", "--steps=2"),
        launcher=(),
    )
    peak = {row["who"]: row["added_bytes"] for row in figures["rows"]}
    assert peak["all"] < peak["remat"] * 0.7
    assert peak["all"] < peak["none"] / 4
    budgets = [who for who in peak if who.startswith("auto")]
    assert len(budgets) == 3
    for who in budgets:
        mebibytes = float(who.removeprefix("auto, ").removesuffix(" MiB"))
        # Allows for four feature maps, because the tensors in flight differ
        # from step to step.
        assert peak[who] < peak["all"] + (mebibytes + 8) * 2**20

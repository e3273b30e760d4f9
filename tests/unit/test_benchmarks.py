"""benchmarks/: its flags and figures, and the models that it trains."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import elastic_jobs
import elastic_scale
import exchanges
import memory
import plots

import tfring


def test_imports_are_from_the_process_s_start_to_the_script_s_first_line():
    worker = elastic_jobs.Worker()
    for line in (
        "process host1 7 100.0 102.5",
        "built 102.6",
        "step 2 3 104.0",
    ):
        worker.take(line)
    assert (worker.host, worker.pid) == ("host1", 7)
    assert worker.import_seconds == 2.5
    assert worker.built == 102.6
    assert worker.steps == [(2, 3, 104.0)]


def test_a_simulated_connection_takes_its_ways_and_its_work():
    costs = elastic_scale.ConnectionCosts(connecting=3e-3, accepting=2e-3)
    one = 5e-3 + 6 * elastic_scale.LATENCY_SECONDS
    assert elastic_scale.connect_all([1.0, 1.0], costs) == pytest.approx(
        1 + one
    )
    # Rank 2 connects to rank 1, and then to rank 0.
    assert elastic_scale.connect_all([0.0] * 3, costs) == pytest.approx(2 * one)


def test_a_simulated_job_goes_on_without_a_lost_host():
    costs = elastic_scale.ConnectionCosts(connecting=1e-3, accepting=1e-3)
    stages = elastic_scale.lose_a_host(3, costs)
    in_all = stages.pop("in all")
    assert in_all == pytest.approx(sum(stages.values()))
    # The last of 16 ranks makes 15 connections.
    assert stages["connected"] > 15 * 2e-3


def chosen(sync, compression):
    options = argparse.Namespace(sync=sync, compression=compression)
    return [each.name for each in exchanges.exchanges(options)]


def test_each_sync_has_each_compression_that_it_takes():
    assert chosen("none,gossip,diloco:50", "none,bf16,powersgd:4") == [
        *("", "bf16", "powersgd:4"),
        "gossip:1",
        *("diloco:50", "diloco:50, bf16"),
    ]
    with pytest.raises(SystemExit, match="there is no diloco:x; known are"):
        chosen("diloco:x", "none")
    with pytest.raises(SystemExit, match="gossip takes no --compression=bf16"):
        chosen("gossip", "bf16")


def test_labels_move_apart():
    assert plots.apart({"a": 10, "b": 50}, 5) == {"a": 10, "b": 50}
    # Those that meet keep their order and their middle.
    moved = plots.apart({"c": 12, "a": 10, "b": 11, "far": 90}, 5)
    assert moved == {"a": 6, "b": 11, "c": 16, "far": 90}


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["gpt", "unet", "vgg16"])
def test_memory_trains_each_model(model):
    step, _ = memory._step(model, 1, tfring.Offload(), None, remat=False)
    assert np.isfinite(step())

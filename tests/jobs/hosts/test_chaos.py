"""Training continues after random faults of its workers and hosts.

Four hosts are network namespaces, with one or two workers each. Faults are
random, and lost workers and hosts are replaced. To run it by hand for hours:

    TFRING_CHAOS_ROUNDS=20 TFRING_CHAOS_FAULTS=10 TFRING_CHAOS_SEED=7 \\
        pytest tests/jobs/hosts/test_chaos.py
"""

import os
import random
import time

import elastic_training
import keras
import numpy as np
import pytest
from chaos_faults import AT_THE_END, KINDS, OF_FIT, OF_SCRIPTS, Faults
from chaos_job import PATIENCE_SECONDS, ChaosJob, write_hosts

_SEED = int(os.environ.get("TFRING_CHAOS_SEED", "1"))
_ROUNDS = int(os.environ.get("TFRING_CHAOS_ROUNDS", "1"))
_FAULTS = int(os.environ.get("TFRING_CHAOS_FAULTS", "5"))
# Runs only these kinds of faults, separated by commas.
_ONLY = os.environ.get("TFRING_CHAOS_KINDS", "")


def kinds_of(dice, *, how, options):
    kinds = [
        kind
        for kind in (_ONLY.split(",") if _ONLY else KINDS)
        if (how == "fit" or kind not in OF_FIT)
        and ("--host-discovery-script" in options or kind not in OF_SCRIPTS)
    ]
    while True:
        yield dice.choices(kinds, [KINDS[kind] for kind in kinds])[0]


def options_of(number, network, folder):
    """Returns the options of a job, and its full number of workers."""
    match number % 3:
        case 0:
            return ["-H", network.slots(1), "--min-np", "2"], 4
        case 1:
            first, *others = network.hosts
            write_hosts(folder, {first: 2, **dict.fromkeys(others, 1)})
            script = folder / "hosts.sh"
            script.write_text(f"#!/bin/sh\ncat '{folder}/hosts'\n")
            script.chmod(0o755)
            return ["--host-discovery-script", script, "--spares", "1"], 4
        case _:
            return [
                *("-H", network.slots(2)),
                *("--min-np", "2", "--max-np", "5", "--spares", "1"),
            ], 5


@pytest.mark.timeout(120 + 60 * _FAULTS + 2 * PATIENCE_SECONDS)
@pytest.mark.parametrize("number", range(_ROUNDS))
def test_training_goes_on(make_network, tmp_path, number):
    network = make_network(4)
    dice = random.Random(f"{_SEED} {number}")
    optimizer = ("momentum", "shards", "adam")[(number + number // 3) % 3]
    how = ("run", "fit")[number % 2]
    options, size = options_of(number, network, tmp_path)
    job = ChaosJob(network, tmp_path, options, optimizer, how)
    faults = Faults(job, dice)

    def wait_for(condition, what):
        def check():
            faults.tick()
            return condition()

        job.wait_for(check, what)

    def is_whole():
        trained, of_size = job.records.trained()
        return of_size == size == len(trained) and faults.is_quiet()

    try:
        wait_for(is_whole, f"{size} workers")
        for kind in kinds_of(dice, how=how, options=options):
            if faults.done >= _FAULTS:
                break
            wait_for(lambda: len(faults.survivors()) >= 3, "three workers")
            if not faults.strike(kind):
                time.sleep(0.1)
                continue
            # The next fault may hit a restart, or a worker that joins.
            pause = time.monotonic() + dice.uniform(0.0, 3.0)
            wait_for(lambda until=pause: time.monotonic() > until, "time")
            if dice.random() < 0.5:
                wait_for(is_whole, f"{size} workers after {kind}")
        wait_for(is_whole, f"{size} workers at last")
        last = dice.choice(AT_THE_END if how == "run" else ("none", "kill"))
        if last != "none":
            faults.strike(last)
        (tmp_path / "enough").touch()
        status = job.finish()
    finally:
        faults.mend_all()
        job.kill()
    story = job.story()

    assert status == 0, story
    job.wait_until_nothing_is_left()
    results = job.results()
    assert sorted(each["rank"] for each in results) == [
        *range(results[0]["size"])
    ], story
    assert len({each["digest"] for each in results}) == 1, story
    steps = results[0]["steps"]
    assert {each["steps"] for each in results} == {steps}, story
    # Each generation loses at most one step, and no step is skipped.
    again = job.records.done_again()
    assert set(again.values()) <= {0, 1}, (again, story)
    if how == "run":
        weights = next(each["weights"] for each in results if each["weights"])
        np.testing.assert_allclose(
            np.frombuffer(bytes.fromhex(weights), np.float32),
            elastic_training.train_alone(optimizer, steps),
            rtol=1e-3,
            atol=1e-4,
            err_msg=story,
        )
    keras.backend.clear_session()

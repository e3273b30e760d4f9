"""Elastic jobs: lost workers are replaced, and training continues."""

import json
import sys
from pathlib import Path

import elastic_training
import keras
import numpy as np
import pytest
from elastic_launches import IMPATIENT, PATIENT
from jobs import FORGIVING_TFRINGRUN, printed, running

SCRIPT = Path(__file__).with_name("elastic_training.py")
RANKS = 3
STEPS = elastic_training.EPOCHS * elastic_training.BATCHES


def train_alone():
    """The same training in one process, on the batches of all ranks at once."""
    x, y = elastic_training.data()
    model = elastic_training.make_model(
        keras.optimizers.SGD(0.05, momentum=0.9)
    )
    for epoch in range(elastic_training.EPOCHS):
        rows = elastic_training.order_of(epoch, RANKS)
        batch_size = elastic_training.BATCH_SIZE * RANKS
        model.fit(x[rows], y[rows], batch_size, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("faults", "reasons"),
    [
        (
            [
                ["w2", 13, "kill"],
                ["w4", 37, "exception"],
                ["w5", -1, "another model"],
            ],
            [
                "killed by SIGKILL",
                "ArithmeticError: as the test wants it",
                "its state has float32 (16, 33) kernel where the members' has",
            ],
        ),
        # One of them is rank 0, the source of the state.
        (
            [["w2", 9, "terminate"], ["w1", 22, "kill"], ["w3", 35, "exit"]],
            [
                "it was asked to end (SIGTERM)",
                "killed by SIGKILL",
                "exit status 3",
            ],
        ),
        pytest.param(
            [[f"w{n}", 24, "terminate"] for n in range(1, RANKS + 1)],
            ["stays until another has its state: it was asked to end"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *([["w3", 24, "stop"]], ["nothing was heard of it for 2 s"]),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            [["w1", 24, "hang"]],
            ["has waited 20 s for rank", "did not leave its generation in 20"],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["lost", "leaving", "all leave", "silent", "hung"],
)
def test_lost_workers_are_replaced(run, marker, faults, reasons, request):
    case = request.node.callspec.id
    limits = {**(IMPATIENT if case == "silent" else PATIENT)}
    if case == "hung":
        limits["TFRING_STALL_SHUTDOWN_TIME_SECONDS"] = "20"
        limits["TFRING_ELASTIC_STOP_SECONDS"] = "20"
    output = run(
        [
            *(*FORGIVING_TFRINGRUN, "-np", RANKS, "--elastic"),
            *("--min-np", RANKS, sys.executable, SCRIPT),
        ],
        env={**limits, "TFRING_TEST_FAULTS": json.dumps(faults)},
    )
    for reason in reasons:
        assert reason in output
    assert running(marker) == []

    results = printed(output)
    assert sorted(each["rank"] for each in results) == list(range(RANKS))
    assert {each["size"] for each in results} == {RANKS}
    # Workers that joined later have built on their own, and knew the size.
    assert {each["began with"] for each in results} == {RANKS}
    assert all(each["weights"] == results[0]["weights"] for each in results)
    # At most one step is done again for each fault ...
    for each in results:
        steps = STEPS - each["first"]
        assert steps <= each["begun"] <= steps + len(faults)
    # ... and none counts twice, or not at all.
    for got, expected in zip(results[0]["weights"], train_alone(), strict=True):
        np.testing.assert_allclose(
            np.frombuffer(bytes.fromhex(got), np.float32),
            expected.ravel(),
            rtol=1e-4,
            atol=1e-5,
        )

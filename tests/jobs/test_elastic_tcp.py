"""Elastic jobs: lost workers are replaced, and training continues."""

import sys

import elastic_training
import numpy as np
import pytest
from elastic_launches import IMPATIENT, PATIENT, Records
from jobs import FORGIVING_TFRINGRUN, printed, running

RANKS, STEPS = 3, 60


@pytest.mark.parametrize(
    ("faults", "reasons", "kind"),
    [
        (
            {"w2": "step kill 13", "w4": "step exception 37"}
            | {"w5": "build another"},
            [
                "killed by SIGKILL",
                "ArithmeticError: as the test wants it",
                "its state has float32 (16, 33) kernel where the members' has",
            ],
            "momentum",
        ),
        # One of them is rank 0, the source of the state.
        (
            {"w2": "step terminate 9", "w1": "step kill 22"}
            | {"w3": "step exit 35"},
            [
                "it was asked to end (SIGTERM)",
                "killed by SIGKILL",
                "exit status 3",
            ],
            "parameters",
        ),
        pytest.param(
            {f"w{n}": "step terminate 24" for n in range(1, RANKS + 1)},
            ["stays until another has its state: it was asked to end"],
            "momentum",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {f"w{n}": "step terminate 24" for n in range(1, RANKS + 1)},
            ["it was asked to end (SIGTERM)"],
            "parameters",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"w3": "step stop 24"},
            ["nothing was heard of it for 2 s"],
            "momentum",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"w1": "step freeze 24"},
            ["has waited 20 s for rank", "did not leave its generation in 20"],
            "momentum",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=[
        *("lost", "leaving", "all leave", "all leave with shares"),
        *("silent", "hung"),
    ],
)
def test_lost_workers_are_replaced(
    run, marker, tmp_path, faults, reasons, kind, request
):
    case = request.node.callspec.id
    limits = {**(IMPATIENT if case == "silent" else PATIENT)}
    if case == "hung":
        limits["TFRING_STALL_SHUTDOWN_TIME_SECONDS"] = "20"
        limits["TFRING_ELASTIC_STOP_SECONDS"] = "20"
    for name in ("progress", "faults"):
        (tmp_path / name).mkdir()
    for worker, fault in faults.items():
        (tmp_path / "faults" / worker).write_text(fault)
    (tmp_path / "enough").write_text(str(STEPS))
    output = run(
        [
            *(*FORGIVING_TFRINGRUN, "-np", RANKS, "--elastic"),
            *("--min-np", RANKS, sys.executable, elastic_training.__file__),
            *(tmp_path, kind, "run"),
        ],
        env=limits,
    )
    for reason in reasons:
        assert reason in output
    assert running(marker) == []

    results = printed(output)
    assert sorted(each["rank"] for each in results) == list(range(RANKS))
    assert {each["size"] for each in results} == {RANKS}
    assert {each["steps"] for each in results} == {STEPS}
    assert len({each["digest"] for each in results}) == 1
    records = Records(tmp_path / "progress")
    # At most one step is done again for each fault ...
    assert set(records.done_again().values()) <= {0, 1}
    # Workers that joined later have built on their own, and knew the size.
    built = {note.size for note in records.notes if note.kind == "built"}
    assert built == {RANKS}
    # ... and none counts twice, or not at all.
    weights = next(each["weights"] for each in results if each["weights"])
    np.testing.assert_allclose(
        np.frombuffer(bytes.fromhex(weights), np.float32),
        elastic_training.train_alone("momentum", STEPS),
        rtol=1e-4,
        atol=1e-5,
    )

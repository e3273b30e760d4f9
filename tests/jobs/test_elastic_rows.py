"""`tfring.elastic.fit` after a loss: no row twice in an epoch, or left out."""

import sys

import elastic_rows
import pytest
from elastic_launches import PATIENT
from elastic_rows import BATCH, EPOCHS, KILLED_IN, RANKS, ROWS
from jobs import TFRINGRUN, printed

from tfring.timeline import summary


# tests/parallel/test_elastic_fit.py also resumes each kind of data.
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("function", []),
        ("arrays", ["jit_compile"]),
        *(
            pytest.param(kind, [], marks=pytest.mark.thorough)
            for kind in elastic_rows.DATA
            if kind != "function"
        ),
    ],
)
def test_what_is_left_of_an_epoch_is_shared_out_anew(
    run, kind, options, tmp_path
):
    timeline = tmp_path / "timeline.json"
    output = run(
        [
            *(*TFRINGRUN, "-np", RANKS, "--elastic", "--min-np", RANKS - 1),
            *("--max-np", RANKS, sys.executable, elastic_rows.__file__, kind),
            *options,
        ],
        env={"TFRING_TIMELINE": str(timeline), **PATIENT},
    )
    assert "killed by SIGKILL" in output
    epoch, _ = KILLED_IN
    for size in (RANKS, RANKS - 1):
        assert f"{size} ranks in epoch {epoch}" in output
    counts = printed(output, "counts")
    assert len(counts) in (RANKS - 1, RANKS)
    assert all(each == counts[0] for each in counts)
    # No row was used twice, and only rows without a full step were left out.
    assert max(counts[0]) == EPOCHS
    assert sum(counts[0]) > EPOCHS * (ROWS - BATCH * RANKS)

    # The timeline has all ranks that are left, from the beginning on.
    ranks = summary.summarize(summary.read(timeline)).ranks
    assert ranks.keys() == set(range(len(counts)))
    steps = EPOCHS * (ROWS // (BATCH * RANKS))
    assert max(rank.requests for rank in ranks.values()) >= steps

"""Rank-specific parts of an elastic job: states, data, seeds and sets."""

import sys

import elastic_parts
import pytest
from elastic_launches import PATIENT
from elastic_parts import BATCH_SIZE, RANKS, ROWS
from jobs import TFRINGRUN, printed


@pytest.mark.timeout(300)
def test_parts_are_shared_out_anew(run):
    output = run(
        [
            *(*TFRINGRUN, "-np", RANKS, "--elastic", "--min-np", RANKS - 1),
            *("--max-np", RANKS, sys.executable, elastic_parts.__file__),
        ],
        env=PATIENT,
        timeout=280,
    )
    results = printed(output)
    assert sorted(each["rank"] for each in results) == [*range(RANKS)]
    assert len({each["digest"] for each in results}) == 1
    # One worker was lost, and another one joined.
    sizes = results[0]["sizes"]
    assert sizes[:2] == [RANKS, RANKS - 1]
    assert sizes[-1] == RANKS
    assert {*"".join(each["worker"] for each in results)} >= {"1", "3"}
    for each in results:
        assert each["sizes"] == sizes
        # Each start has called the callbacks; one that joins, when it did.
        assert each["resets"] == [RANKS, *sizes[-len(each["resets"]) + 1 :]]
        # No row twice in an epoch, and none left out but the last few.
        for trained, different in each["counts"]:
            assert trained == different
            assert trained > ROWS - BATCH_SIZE * RANKS

"""With `keep_traces=True` a step is traced once, whatever the size."""

import sys
from pathlib import Path

from elastic_launches import PATIENT
from jobs import TFRINGRUN, printed

SCRIPT = Path(__file__).with_name("elastic_kept_traces.py")


def test_a_step_is_traced_once_whatever_the_size(run):
    output = run(
        [
            *(*TFRINGRUN, "-np", 2, "--elastic", "--min-np", 1),
            *("--max-np", 2, sys.executable, SCRIPT),
        ],
        env=PATIENT,
    )
    results = {result["worker"]: result for result in printed(output)}
    first = results.pop("w1")
    [joiner] = results.values()
    assert first["sizes"] == [2, 1, 2]
    assert joiner["sizes"] == [2]
    assert first["weights"] == joiner["weights"]
    # The joiner's while it builds, so that the first does not wait for it.
    assert set(first["traced in"]) == set(joiner["traced in"]) == {1}

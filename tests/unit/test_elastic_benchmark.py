"""The figures that the benchmark of elastic faults reads from workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import elastic_jobs


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

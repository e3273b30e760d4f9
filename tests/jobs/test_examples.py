"""The examples run, and do what they say."""

import re
import sys
from pathlib import Path

from jobs import TFRINGRUN

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_keras_digits(start):
    command = [*TFRINGRUN, "-np", "2", sys.executable]
    job = start([*command, EXAMPLES / "keras_digits.py"])
    output, _ = job.communicate(timeout=110)
    assert job.returncode == 0, output
    assert "weights identical on all ranks: yes" in output
    rows = re.findall(r"^\[0\] ([12]) +(0\.\d+) +(\d+)$", output, re.MULTILINE)
    assert [ranks for ranks, _, _ in rows] == ["2", "1"], output
    assert all(float(accuracy) >= 0.97 for _, accuracy, _ in rows)
    # Of the progress bars of two ranks, one is shown.
    assert "[0] Epoch 5/5" in output
    assert "[1] Epoch" not in output

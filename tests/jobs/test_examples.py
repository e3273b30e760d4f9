"""The examples run, and do what they say."""

import re
import sys
from pathlib import Path

import pytest
from jobs import TFRINGRUN

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(start, example, *flags):
    command = [*TFRINGRUN, "-np", "2", sys.executable, EXAMPLES / example]
    job = start([*command, *flags])
    output, _ = job.communicate(timeout=80)
    return job.returncode, output


@pytest.mark.timeout(260)  # three jobs
def test_keras_resume(start, tmp_path):
    def digest(output):
        assert "state identical on all ranks: yes" in output
        return re.search(r"digest ([0-9a-f]{64})$", output, re.MULTILINE)[1]

    code, output = run(start, "keras_resume.py", "--checkpoint=a.weights.h5")
    assert code == 0, output
    uninterrupted = digest(output)
    assert "starting with epoch 1" in output
    assert float(re.search(r"accuracy (0\.\d+)", output)[1]) > 0.9

    code, output = run(start, "keras_resume.py", "--crash_in_epoch=3")
    assert code != 0
    assert "digest" not in output
    code, output = run(start, "keras_resume.py")
    assert code == 0, output
    assert "starting with epoch 3" in output
    assert digest(output) == uninterrupted
    # In the directory that the job was started in; nothing else is left there.
    names = {path.name for path in tmp_path.glob("*.h5")}
    assert names == {"a.weights.h5", "digits.weights.h5"}


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

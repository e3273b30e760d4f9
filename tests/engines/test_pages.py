"""The programs of the pages on Spark and Ray, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SECONDS

GUIDES = Path(__file__).parents[2] / "docs/guides"
MASTER = {"PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell"}


@pytest.mark.parametrize(("page", "jobs"), [("spark", 1), ("ray", 2)])
def test_a_program(page, jobs, tmp_path):
    text = (GUIDES / f"{page}.md").read_text()
    program, *_ = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, **MASTER},
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * SECONDS,
    )
    assert done.returncode == 0
    results = re.findall(r"^\[\(0, .*\), \(1, .*\)\]$", done.stdout, re.M)
    assert len(results) == jobs, done.stdout

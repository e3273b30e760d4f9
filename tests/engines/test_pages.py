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

FRAME = """
import sys
import numpy as np
import tfring.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
data, saved = sys.argv[1] + "/rows", sys.argv[1] + "/model.keras"
rows = np.random.default_rng(0).normal(size=(4096, 3))
frame = spark.createDataFrame(
    [(row.tolist(), float(row.sum())) for row in rows],
    "features: array<float>, label: float",
)
"""
PREDICTED = """
predicted = predicted.toPandas()
assert len(predicted) == 4096
assert predicted["prediction"].nunique() > 4000
"""
DATASET = """
import numpy as np
import ray
import tfring.ray
import keras

ray.init(num_cpus=4)
x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
dataset = ray.data.from_numpy(x).map_batches(
    lambda batch: {"x": batch["data"], "y": batch["data"].sum(axis=1)}
)
executor = tfring.ray.RayExecutor(num_workers=2)
executor.start()
"""
SHUTDOWN = """
executor.shutdown()
"""


def blocks(page):
    text = (GUIDES / f"{page}.md").read_text()
    return re.findall(r"```py\n(.*?)```", text, re.DOTALL)


def run(program, folder):
    script = folder / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, script, folder],
        env={**os.environ, **MASTER},
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * SECONDS,
    )
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize(("page", "jobs"), [("spark", 1), ("ray", 2)])
def test_a_program(page, jobs, tmp_path):
    output = run(blocks(page)[0], tmp_path)
    results = re.findall(r"^\[\(0, .*\), \(1, .*\)\]$", output, re.M)
    assert len(results) == jobs, output


@pytest.mark.parametrize(
    ("page", "function", "before", "after"),
    [
        ("spark", "def train(data, saved):", FRAME, PREDICTED),
        ("ray", "def train(shards):", DATASET, SHUTDOWN),
    ],
)
def test_its_data(page, function, before, after, tmp_path):
    [block] = [each for each in blocks(page) if function in each]
    run(before + block + after, tmp_path)

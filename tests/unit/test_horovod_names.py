"""The modules of the name horovod, in processes that see them."""

import json
import os
import subprocess
import sys

import pytest

from tfring import horovod

IMPORTS = """
import importlib, inspect, json, sys
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    found[name] = sorted(n for n in vars(module) if not n.startswith("_"))
print(json.dumps(found))
"""


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": horovod.search_path()},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_module_has_its_names():
    modules = [
        ".".join(path.relative_to(horovod.FOLDER).with_suffix("").parts)
        for path in horovod.FOLDER.rglob("*.py")
    ]
    modules = [each.removesuffix(".__init__") for each in modules]
    absent = {"horovod.torch", "horovod.mxnet"}
    done = run(IMPORTS, *sorted(set(modules) - absent))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for module, names in {
        "horovod": ["run"],
        "horovod.common.exceptions": ["HorovodInternalError"],
        "horovod.common.process_sets": ["ProcessSet"],
        "horovod.common.util": ["gloo_built"],
        "horovod.keras": ["allreduce", "callbacks", "elastic", "load_model"],
        "horovod.runner": ["run"],
        "horovod.tensorflow": [
            *("DistributedGradientTape", "DistributedOptimizer", "elastic"),
            *("allreduce", "broadcast_global_variables", "local_rank", "rank"),
        ],
        "horovod.tensorflow.compression": ["Compression"],
        "horovod.tensorflow.data.compute_service": ["tf_data_service"],
        "horovod.tensorflow.elastic": ["TensorFlowKerasState", "run"],
        "horovod.tensorflow.functions": ["broadcast_variables"],
        "horovod.tensorflow.keras": ["DistributedOptimizer", "callbacks"],
        "horovod.tensorflow.keras.callbacks": ["MetricAverageCallback"],
        "horovod.tensorflow.mpi_ops": ["Sum", "allgather"],
    }.items():
        assert set(names) <= set(found[module]), module


@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_other_frameworks_are_not_there(framework):
    done = run(f"import horovod.{framework}")
    assert f"ImportError: horovod.{framework}: tfring" in done.stderr


def test_packages_find_the_version():
    script = "from importlib.metadata import version; print(version('horovod'))"
    assert run(script).stdout == f"{horovod.VERSION}\n"


def test_refuses_to_stand_beside_horovod(tmp_path, monkeypatch):
    real = tmp_path / "horovod-0.28.1.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"Horovod 0\.28\.1 is installed"):
        horovod.search_path()


def test_a_command_runs_with_the_names():
    script = "import horovod; print(horovod.__version__)"
    done = subprocess.run(
        [sys.executable, "-m", "tfring.horovod", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == f"{horovod.VERSION}\n"

"""The modules of the name horovod, in processes that see them."""

import json
import os
import sys

import pytest
from programs import run_python

from tfring import horovod
from tfring.horovod import variables

IMPORTS = """
import importlib, inspect, json, sys
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    found[name] = sorted(n for n in vars(module) if not n.startswith("_"))
print(json.dumps(found))
"""


def run(script, *arguments, **variables):
    return run_python(
        *("-c", script, *arguments),
        env={**os.environ, **horovod.settings(), **variables},
    )


def test_every_module_has_its_names():
    modules = [
        ".".join(path.relative_to(horovod.FOLDER).with_suffix("").parts)
        for path in horovod.FOLDER.rglob("*.py")
    ]
    modules = [each.removesuffix(".__init__") for each in modules]
    absent = {
        *("horovod.torch", "horovod.mxnet"),
        *("horovod.spark.common", "horovod.spark.keras"),
    }
    done = run(IMPORTS, *sorted(set(modules) - absent))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for module, names in {
        "horovod": ["run"],
        "horovod.common.exceptions": ["HorovodInternalError"],
        "horovod.common.process_sets": ["ProcessSet"],
        "horovod.common.util": ["gloo_built"],
        "horovod.keras": ["allreduce", "callbacks", "elastic", "load_model"],
        "horovod.ray": ["RayExecutor"],
        "horovod.runner": ["run"],
        "horovod.spark": ["run", "run_elastic"],
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


def test_keras_2_has_its_own():
    pytest.importorskip("tf_keras")
    script = """
import horovod.keras as hvd, horovod.tensorflow as tf_hvd, tf_keras
import horovod.tensorflow.elastic, horovod.keras.callbacks
of_keras2 = "tfring.horovod.keras2"
for each in (
    *vars(hvd.callbacks).values(),
    *vars(hvd.elastic).values(),
    tf_hvd.elastic.TensorFlowKerasState,
    tf_hvd.SyncBatchNormalization,
    hvd.load_model,
):
    if isinstance(each, type) and "Error" not in each.__name__:
        print(each.__name__, each.__module__.startswith(of_keras2))
assert issubclass(tf_hvd.SyncBatchNormalization, tf_keras.layers.Layer)
"""
    done = run(script, TF_USE_LEGACY_KERAS="1")
    print(done.stderr)
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found.pop("HostsUpdatedInterrupt") == "False"
    assert len(found) == 11
    assert set(found.values()) == {"True"}


@pytest.mark.parametrize("framework", ["torch", "mxnet"])
def test_other_frameworks_are_not_there(framework):
    done = run(f"import horovod.{framework}")
    assert f"ImportError: horovod.{framework}: tfring" in done.stderr


def test_a_compute_worker_takes_its_options():
    script = """
import runpy, sys
sys.argv = ["compute_worker"]
runpy.run_module("horovod.tensorflow.data.compute_worker", run_name="__main__")
"""
    assert "required: configfile" in run(script).stderr


def test_packages_find_the_version():
    script = "from importlib.metadata import version; print(version('horovod'))"
    assert run(script).stdout == f"{horovod.VERSION}\n"


def test_refuses_to_stand_beside_horovod(tmp_path, monkeypatch):
    real = tmp_path / "horovod-0.28.1.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"Horovod 0\.28\.1 is installed"):
        horovod.settings()


def test_a_command_runs_with_the_names():
    script = "import horovod; print(horovod.__version__)"
    done = run_python("-m", "tfring.horovod", sys.executable, "-c", script)
    assert done.stdout == f"{horovod.VERSION}\n"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            {
                "HOROVOD_FUSION_THRESHOLD": "1048576",
                "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
                "HOROVOD_TIMELINE": "t.json",
                "HOROVOD_LOG_LEVEL": "INFO",
                "HOROVOD_ENABLE_XLA_OPS": "1",
            },
            {
                "TFRING_FUSION_THRESHOLD": "1048576",
                "TFRING_STALL_CHECK_TIME_SECONDS": "5",
                "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "9",
                "TFRING_TIMELINE": "t.json",
                "TFRING_VERBOSE": "1",
            },
        ),
        (
            {
                "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
                "HOROVOD_STALL_CHECK_DISABLE": "1",
            },
            {
                "TFRING_STALL_CHECK_TIME_SECONDS": "0",
                "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "0",
            },
        ),
        (
            {
                "HOROVOD_STALL_CHECK_DISABLE": "0",
                "HOROVOD_TIMELINE": "DYNAMIC",
                "HOROVOD_LOG_LEVEL": "warning",
                "HOROVOD_FUSION_THRESHOLD": "",
            },
            {},
        ),
    ],
)
def test_variables_of_horovod(theirs, ours):
    assert variables.counterparts(theirs) == ours
    assert variables.unread(theirs) == ""


def test_a_variable_of_tfring_has_its_way():
    both = {"HOROVOD_TIMELINE": "theirs", "TFRING_TIMELINE": "ours"}
    assert variables.counterparts(both) == {}


def test_variables_without_a_counterpart_are_named_by_one_rank():
    script = "import os; print(os.environ['TFRING_FUSION_THRESHOLD'])"
    for rank, names in ("0", "HOROVOD_A, HOROVOD_CYCLE_TIME.\n"), ("1", ""):
        done = run_python(
            *("-m", "tfring.horovod", sys.executable, "-c", script),
            env={
                **os.environ,
                "HOROVOD_FUSION_THRESHOLD": "64",
                "HOROVOD_CYCLE_TIME": "1",
                "HOROVOD_A": "1",
                "OMPI_COMM_WORLD_RANK": rank,
            },
        )
        assert done.stdout == "64\n"
        assert done.stderr.endswith(names)
        assert bool(done.stderr) == bool(names)


def test_estimators_of_spark_are_absent():
    script = """
for name in ("horovod.spark.keras", "horovod.spark.common.store"):
    try:
        __import__(name)
    except ImportError as error:
        print(type(error).__name__, error)
"""
    done = run(script)
    assert done.stdout.count("ImportError horovod.spark.") == 2, done.stderr
    assert done.stdout.count("no KerasEstimator and no Store") == 2


def test_horovods_arguments_of_spark(monkeypatch, caplog):
    from tfring.horovod import spark

    asked = []
    monkeypatch.setattr(
        spark.tfring.spark, "run", lambda *a, **k: asked.append((a, k))
    )
    spark.run(len, (1,), {"a": 2}, 4, 30, use_gloo=True, env={"A": "b"})
    [((fn, args, kwargs, ranks, env, minimum, maximum), options)] = asked
    assert (fn, args, kwargs, ranks) == (len, (1,), {"a": 2}, 4)
    assert (env["A"], env["PYTHONPATH"]) == ("b", str(horovod.FOLDER))
    assert options == {"start_timeout": 30, "verbose": False}
    assert minimum is maximum is None
    assert "ignores them: use_gloo." in caplog.text
    spark.run_elastic(len, num_proc=2, min_num_proc=1, max_num_proc=3)
    assert (asked[1][0][3], *asked[1][0][5:]) == (2, 1, 3)
    with pytest.raises(TypeError, match=r"no arguments \['num_procs'\]"):
        spark.run(len, num_procs=2)


def test_horovods_arguments_of_ray(monkeypatch):
    from tfring.horovod import ray

    asked = []
    monkeypatch.setattr(
        ray.tfring.ray.RayExecutor,
        "__init__",
        lambda self, *a, **k: asked.append((a, k)),
    )
    settings = ray.RayExecutor.create_settings(placement_group_timeout_s=7)
    ray.RayExecutor(settings, num_workers=2, use_gpu=True)
    [(ranks, options)] = asked
    assert ranks == (2,)
    assert (options["gpus_per_worker"], options["start_timeout"]) == (1, 7)
    ray.RayExecutor(min_workers=1, max_workers=3)
    (ranks, options) = asked[1]
    assert ranks == (1,)
    assert (options["min_workers"], options["max_workers"]) == (1, 3)
    with pytest.raises(ValueError, match="has no num_hosts"):
        ray.RayExecutor(settings, num_hosts=2)

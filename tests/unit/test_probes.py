"""The probes' answers, compared with the library itself."""

import contextlib
import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

import tfring
from tfring._core import abi, job, mpi_job, native


@pytest.fixture(scope="module")
def linked_libraries():
    return subprocess.run(
        ["ldd", abi.LIBRARY], check=True, capture_output=True, text=True
    ).stdout


def test_what_is_built_in(linked_libraries):
    assert tfring.mpi_built() is True
    assert "libmpi" in linked_libraries
    for name, built in (
        ("gloo", tfring.gloo_built()),
        ("libddl", tfring.ddl_built()),
        ("libccl", tfring.ccl_built()),
    ):
        assert built is False
        assert name not in linked_libraries


def test_nccl_is_what_is_found(linked_libraries):
    assert "libnccl" not in linked_libraries
    version = tfring.nccl_built()
    assert type(version) is int
    beside_tensorflow = Path(tf.__file__).parents[1] / "nvidia/nccl/lib"
    found = (beside_tensorflow / "libnccl.so.2").exists()
    with contextlib.suppress(OSError):
        found = bool(ctypes.CDLL("libnccl.so.2")) or found
    assert (version > 20000) == found


def test_devices_are_those_of_the_kernels():
    native.ops()
    registered = kernels.get_registered_kernels_for_op("TfringAllreduceStart")
    devices = {kernel.device_type for kernel in registered.kernel}
    assert "CPU" in devices
    on_gpus = "GPU" in devices
    assert (tfring.cuda_built() or tfring.rocm_built()) == on_gpus


def test_gpu_available():
    devices = {d.device_type for d in tf.config.list_logical_devices()}
    assert tfring.gpu_available() == ("GPU" in devices)
    assert tfring.gpu_available("tensorflow", True) == ("GPU" in devices)


def test_what_the_job_has(no_job):
    assert tfring.mpi_enabled() is True
    assert tfring.gloo_enabled() is False
    for probe in (tfring.mpi_threads_supported, tfring.is_homogeneous):
        with pytest.raises(tfring.NotInitializedError):
            probe()
    tfring.init()
    assert tfring.mpi_threads_supported() is True
    assert tfring.is_homogeneous() is True


@pytest.mark.parametrize(
    ("local_sizes", "homogeneous"), [([2, 2, 2], True), ([1, 3, 1], False)]
)
def test_homogeneous_jobs(local_sizes, homogeneous):
    part = SimpleNamespace(bcast=lambda rank: rank, Free=lambda: None)
    nodes = [n for n, size in enumerate(local_sizes) for _ in range(size)]
    comm = SimpleNamespace(
        rank=0,
        Split_type=lambda *_, **__: part,
        allgather=lambda _: nodes,
    )
    topology = job.Topology.of_nodes(0, mpi_job.nodes_of(comm))
    assert topology.is_homogeneous is homogeneous

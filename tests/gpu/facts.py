"""Facts about the machine and, from its driver, the GPU, for the report."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import bare_gpu

# Numbers of cuda.h's CUdevice_attribute.
ATTRIBUTES = {
    "multiprocessors": 16,
    "integrated": 18,
    "compute mode": 20,
    "asynchronous copy engines": 40,
    "compute capability, major": 75,
    "compute capability, minor": 76,
    "stream priorities": 78,
    "preemption in a kernel": 90,
    "host pointers of registered memory": 91,
    "stream memory operations of 64 bits": 122,
    "events for other processes": 125,
    "memory of the host can be registered": 99,
    "multicast": 132,
}


def test_machine(record_property):
    record_property("Python", platform.python_version())
    record_property("libc", " ".join(platform.libc_ver()))
    record_property("cores", os.cpu_count())
    shared = shutil.disk_usage("/dev/shm")
    record_property("/dev/shm, MiB", shared.total >> 20)
    devices = sorted(path.name for path in Path("/dev").glob("nvidia*"))
    record_property("devices", " ".join(devices) or "none")


@pytest.mark.parametrize("names", [("driver_version", "name", "memory.total")])
def test_nvidia_smi(names, record_property):
    command = shutil.which("nvidia-smi")
    if command is None:
        pytest.skip("no nvidia-smi")
    said = subprocess.run(
        [command, f"--query-gpu={','.join(names)}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    record_property("nvidia-smi", (said.stdout + said.stderr).strip())


def test_mps(record_property):
    """Multi-Process Service: with it, ranks on one GPU do not take turns."""
    control = shutil.which("nvidia-cuda-mps-control")
    record_property("nvidia-cuda-mps-control", control or "none")
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    record_property("runs", (pipes / "control").exists())


def test_gpus(record_property):
    for name, text in bare_gpu.description():
        record_property(name, text)


def test_attributes(gpu, record_property):
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        bare_gpu.call(
            "cuDeviceGetAttribute", ctypes.byref(value), number, gpu.ordinal
        )
        record_property(name, value.value)

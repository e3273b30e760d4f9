"""The PTX that is committed is what its source compiles to."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import cuda_kernels


def test_the_ptx_is_of_its_source():
    nvrtc = cuda_kernels.compiler()
    if nvrtc is None:
        pytest.skip(f"needs {cuda_kernels.PACKAGE}=={cuda_kernels.VERSION}")
    assert cuda_kernels.compile_kernels(nvrtc) == cuda_kernels.PTX.read_text()


def test_the_ptx_runs_on_old_drivers_and_gpus():
    ptx = cuda_kernels.PTX.read_text()
    assert ".version 8.1\n.target sm_52\n" in ptx

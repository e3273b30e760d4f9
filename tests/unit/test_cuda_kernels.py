"""The committed PTX matches its source, and assembles for all GPUs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import cuda_kernels
from tfring_build.find import PTXAS_WHEEL, find_ptxas

# All GPUs that CUDA 12 has code for, except for embedded ones.
CAPABILITIES = (60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121)


def test_the_ptx_is_of_its_source():
    if cuda_kernels.compiler() is None:
        pytest.skip(f"needs {cuda_kernels.PACKAGE}=={cuda_kernels.VERSION}")
    # NVRTC gives its process the locale "C", in which later tests could not
    # read pages with other characters than ASCII's.
    done = subprocess.run(
        [sys.executable, cuda_kernels.__file__, "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_ptx_runs_on_old_drivers_and_gpus():
    ptx = cuda_kernels.PTX.read_text()
    assert ".version 8.1\n.target sm_52\n" in ptx


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_ptx_assembles_for_every_gpu(capability, tmp_path):
    """It also checks that no kernel spills registers to memory."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip(f"needs {PTXAS_WHEEL}")
    done = subprocess.run(
        [
            *(ptxas, "--verbose", f"--gpu-name=sm_{capability}"),
            *("--warn-on-spills", "--warning-as-error"),
            *(f"--output-file={tmp_path}/kernels.cubin", cuda_kernels.PTX),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kernels = cuda_kernels.PTX.read_text().count(".visible .entry ")
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert spills == ["0"] * kernels


def test_each_gpu_has_code_of_its_generation():
    """The library and the build list the same assembled kernels."""
    root = cuda_kernels.ROOT
    source = (root / "tfring_ops/kernels/cuda_cubins.cc").read_text()
    macro, _, _ = source.partition("#define TFRING_INCLUDE_CUBIN")
    included = re.findall(r"MACRO\((\d+)\)", macro)
    native = (root / "tools/native.mk").read_text()
    [listed] = re.findall(r"sm_%.cubin,\\\n +([\d ]+)\)", native)
    assert included == listed.split()
    generations = {int(capability) // 10 for capability in included}
    assert generations == {capability // 10 for capability in CAPABILITIES}

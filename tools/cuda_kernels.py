"""Compiles tfring_ops/kernels/cuda_kernels.cu to PTX.

`python tools/cuda_kernels.py` writes cuda_kernels.ptx beside it; with --check
it only looks whether what is there is what would be written.  No GPU and no
CUDA toolkit: `pip install nvidia-cuda-nvrtc-cu12==12.1.105` is all it takes.
Another version of the compiler writes other PTX, which an older driver might
not know.
"""

import ctypes
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

PACKAGE = "nvidia-cuda-nvrtc-cu12"
VERSION = "12.1.105"
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "tfring_ops/kernels/cuda_kernels.cu"
PTX = SOURCE.with_suffix(".ptx")
# Any GPU since Maxwell: the driver compiles it further for its own.
# fmad: cpu_loops.h is compiled without contraction, too.
OPTIONS = (
    "--gpu-architecture=compute_52",
    "--fmad=false",
    "--std=c++17",
    f"--include-path={ROOT}",
)


def compiler() -> ctypes.CDLL | None:
    """Returns NVRTC's library, or None where it is not installed."""
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    if distribution.version != VERSION:
        return None
    for file in distribution.files or ():
        if file.name == "libnvrtc.so.12":
            return ctypes.CDLL(str(distribution.locate_file(file)))
    return None


def compile_kernels(nvrtc: ctypes.CDLL) -> str:
    """Returns the PTX of the kernels as text."""
    program = ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program),
            SOURCE.read_bytes(),
            SOURCE.name.encode(),
            0,
            None,
            None,
        ),
        "nvrtcCreateProgram",
    )
    options = [option.encode() for option in OPTIONS]
    result = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    if log.strip():
        print(log, file=sys.stderr)
    _check(result, "nvrtcCompileProgram")
    return _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)


def _text(
    get_size: Callable[..., int],
    get: Callable[..., int],
    program: ctypes.c_void_p,
) -> str:
    size = ctypes.c_size_t()
    _check(get_size(program, ctypes.byref(size)), get_size.__name__)
    text = ctypes.create_string_buffer(size.value)
    _check(get(program, text), get.__name__)
    return text.value.decode()


def _check(result: int, function: str) -> None:
    if result != 0:
        raise RuntimeError(f"{function} failed: error {result} of NVRTC")


def main() -> None:
    """Writes the PTX, or with --check compares it."""
    nvrtc = compiler()
    if nvrtc is None:
        sys.exit(f"needs NVRTC: pip install {PACKAGE}=={VERSION}")
    ptx = compile_kernels(nvrtc)
    if sys.argv[1:] == ["--check"]:
        if PTX.read_text() != ptx:
            sys.exit(
                f"{PTX} is not what {Path(__file__).name} makes of {SOURCE}"
            )
    else:
        PTX.write_text(ptx)


if __name__ == "__main__":
    main()

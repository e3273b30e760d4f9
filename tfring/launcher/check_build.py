"""Reports the features of this tfring build: `tfringrun --check-build`.

With `--horovod` it ends with Horovod's report, which scripts search.

It loads TensorFlow and MPI, so that the report is true for a job. Each line is
printed as soon as it is known, which shows where a library fails to load.
"""

from __future__ import annotations

import os
import platform
import sys


def main() -> int:
    """Prints the report; returns the exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tfring
    from tfring import _build_info

    print(f"tfring {tfring.__version__}", flush=True)
    _say("Python", platform.python_version())
    _say("compiler", _build_info.COMPILER)
    # The op library can only be opened with its MPI.
    status = _check_mpi()
    if not _build_info.TENSORFLOW_VERSION:
        _say("TensorFlow", "none: built without it, for tests of GPUs")
        return status
    status = status or _check_tensorflow()
    if status == 0 and "--horovod" in sys.argv:
        _print_as_horovod()
    return status


def _print_as_horovod() -> None:
    from tfring import horovod
    from tfring._core import native

    nccl = "X" if native.capi().tfring_nccl_version() else " "
    print(f"""
Horovod v{horovod.VERSION}:

Available Frameworks:
    [X] TensorFlow
    [ ] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [ ] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [ ] DDL
    [ ] CCL
    [X] MPI
    [ ] Gloo""")


def _check_mpi() -> int:
    from tfring import _build_info
    from tfring._core import abi, native
    from tfring.launcher import mpi_launchers, prepare

    try:
        MPI = native.mpi()  # noqa: N806
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError
        reason = " ".join(str(error).split())
        _say(
            "MPI",
            f"none: {abi.mpi_library()}, of {_build_info.MPI_VERSION}, cannot "
            f"be loaded: {reason}. Install that MPI again, or build tfring "
            "with the one that you have.",
        )
        return 1

    levels = {
        MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE",
        MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
        MPI.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
        MPI.THREAD_MULTIPLE: "MPI_THREAD_MULTIPLE",
    }
    library = MPI.Get_library_version().partition(",")[0].splitlines()[0]
    level = levels[MPI.Query_thread()]
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        level += ", too low: tfring needs MPI_THREAD_MULTIPLE"
    _say("MPI", f"{library} (built with {_build_info.MPI_VERSION}), {level}")
    try:
        launcher = prepare.find_launcher()
    except mpi_launchers.LauncherNotFoundError as error:
        _say("mpirun", str(error))
        return 1
    _say(
        "mpirun",
        f"{launcher.path} ({launcher.family.value} {launcher.version})",
    )
    return 0 if MPI.Query_thread() == MPI.THREAD_MULTIPLE else 1


def _check_tensorflow() -> int:
    import keras
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    from tfring import _build_info
    from tfring._core import native

    _say(
        "TensorFlow",
        f"{tf.__version__} (built with {_build_info.TENSORFLOW_VERSION})",
    )
    _say("Keras", f"{keras.__version__}, backend {keras.backend.backend()}")
    native.ops()
    # TensorFlow registers the kernels for XLA when it first compiles.
    tf.function(lambda: tf.zeros([]), jit_compile=True)()
    devices = {
        kernel.device_type
        for kernel in kernels.get_registered_kernels_for_op(
            "TfringAllreduceStart"
        ).kernel
    }
    _say(
        "XLA",
        "yes: works under jit_compile=True"
        if "XLA_CPU_JIT" in devices
        else "no: not under jit_compile=True",
    )
    for line in native.capi().tfring_describe_gpus().decode().splitlines():
        _say(*line.split("\t", 1))
    if keras.backend.backend() != "tensorflow":
        print("Keras must use TensorFlow: set KERAS_BACKEND=tensorflow.")
        return 1
    return 0


def _say(what: str, text: str) -> None:
    print(f"  {what:<12}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

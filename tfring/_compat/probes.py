"""Horovod's probes of a build's features.

All but `is_homogeneous` and `mpi_threads_supported` may be asked before `init`.
`tfringrun --check-build` shows more, for people.
"""

from __future__ import annotations

from tfring._core import native, runtime


def mpi_built() -> bool:
    """Returns true: ranks can talk through MPI."""
    return True


def mpi_enabled() -> bool:
    """Tells if the ranks talk through MPI.

    They do not in elastic jobs, and where `tfring.run` has started them on one
    machine.
    """
    return not native.is_tcp_job()


def mpi_threads_supported() -> bool:
    """Tells whether MPI may be called from several threads at once.

    True after `init`, which refuses an MPI that says otherwise: mpi4py and
    tfring may be used side by side. False in jobs that do not start MPI.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    runtime.size()
    if native.is_tcp_job():
        return False
    MPI = native.mpi()  # noqa: N806
    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """Returns false: tfring does not use Gloo."""
    return False


def gloo_enabled() -> bool:
    """Returns false: tfring does not use Gloo."""
    return False


def nccl_built() -> int:
    """The version of NCCL that tensors on GPUs may go by, 0 for none.

    It is found at run time, in TensorFlow's own package of it or where the
    loader finds it, and used as `TFRING_GPU_BACKEND` says. 22105 is 2.21.5.
    """
    return int(native.capi().tfring_nccl_version())


def ddl_built() -> bool:
    """Returns false: tfring does not use IBM's DDL."""
    return False


def ccl_built() -> bool:
    """Returns false: tfring does not use Intel's oneCCL."""
    return False


def cuda_built() -> bool:
    """Returns true: collectives have kernels for CUDA in every build.

    See `gpu_available` for a GPU to use them on.
    """
    return True


def rocm_built() -> bool:
    """Returns false: collectives have no kernels for ROCm."""
    return False


def gpu_available(
    ext_base_name: str = "tensorflow", verbose: bool = False
) -> bool:
    """Tells whether TensorFlow sees a GPU in this process.

    Collectives of tensors on it run there: see `cuda_built`.

    Args:
        ext_base_name: Horovod's name of the framework; there is one here.
        verbose: Without effect, as nothing is run that has an output.
    """
    del ext_base_name, verbose
    # The other probes need no TensorFlow, which takes seconds to import.
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def is_homogeneous() -> bool:
    """Tells whether all machines of the job have the same number of ranks.

    Not collective: `init` has found out.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return runtime.place().is_homogeneous

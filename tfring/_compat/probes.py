"""Horovod's probes of a build's features.

All but `is_homogeneous` and `mpi_threads_supported` may be asked before `init`.
`tfringrun --check-build` shows more, for people.
"""

from __future__ import annotations

from tfring._core import native, runtime


def mpi_built() -> bool:
    """Returns true: ranks can communicate through MPI."""
    return True


def mpi_enabled() -> bool:
    """Tells whether the ranks communicate through MPI.

    They do not in elastic jobs, or if `tfring.run`, Spark or Ray has started
    them.
    """
    return not native.is_tcp_job()


def mpi_threads_supported() -> bool:
    """Tells whether MPI may be called from several threads at once.

    It may in every job with MPI, because `init` refuses an MPI without such
    support: mpi4py and tfring may be used side by side. Returns False in jobs
    without MPI.

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
    """Returns the version of NCCL that tfring can use, or 0 for none.

    NCCL is looked for at run time, in the package that TensorFlow uses and by
    the loader; `TFRING_GPU_BACKEND` says whether it is used. 22105 is 2.21.5.
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

    `gpu_available` tells whether there is a GPU.
    """
    return True


def rocm_built() -> bool:
    """Returns false: collectives have no kernels for ROCm."""
    return False


def gpu_available(
    ext_base_name: str = "tensorflow", verbose: bool = False
) -> bool:
    """Tells whether TensorFlow sees a GPU in this process.

    Collectives of tensors on a GPU run on the GPU: see `cuda_built`.

    Args:
        ext_base_name: Horovod's name of the framework; there is one here.
        verbose: Ignored, because nothing is run that has an output.
    """
    del ext_base_name, verbose
    # The other probes need no TensorFlow, which takes seconds to import.
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def is_homogeneous() -> bool:
    """Tells whether all machines of the job have the same number of ranks.

    It is not collective, because `init` has found this out.

    Raises:
        NotInitializedError: `init` has not been called.
    """
    return runtime.place().is_homogeneous

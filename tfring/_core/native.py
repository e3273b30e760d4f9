"""The op library, opened once as TensorFlow ops and once as a C library."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
from ctypes import c_char_p, c_double, c_int32, c_int64
from typing import Any

from tfring._core import abi, fabrics, settings, watchdog

# How long `init` waits for all ranks, unless TFRING_INIT_TIMEOUT_SECONDS is
# set.
INIT_SECONDS = 600.0

# Open MPI's state of a process that has called `MPI_Finalize`.
_OMPI_MPI_STATE_FINALIZE_COMPLETED = 5

# The type `tfring_connect` of tfring_ops/capi/capi.h.
CONNECT = ctypes.CFUNCTYPE(c_int32, c_int32, c_int32)

_INT32S = ctypes.POINTER(c_int32)
_INT64S = ctypes.POINTER(c_int64)

# The functions of `tfring_ops/capi/capi.h`: the type of the result, and the
# types of the arguments.
_SIGNATURES: dict[str, list[Any]] = {
    "tfring_check_options": [c_char_p],
    "tfring_init": [c_char_p, c_int32],
    "tfring_init_sockets": [
        *(c_char_p, c_int64, c_int32, c_int32, _INT32S, CONNECT, c_int32)
    ],
    "tfring_abort": [None, c_int64, c_char_p],
    "tfring_pulse_start": [c_char_p, c_int32, c_double],
    "tfring_shutdown": [None],
    "tfring_ended": [c_char_p],
    "tfring_add_process_set": [c_char_p, c_int32, _INT32S, c_int32, c_int32],
    "tfring_add_process_set_sockets": [
        *(c_char_p, c_int32, _INT32S, c_int32, c_int32, _INT32S, CONNECT)
    ],
    "tfring_remove_process_set": [None, c_int32],
    "tfring_fusion_threshold_bytes": [c_int64],
    "tfring_timeline_start": [None, c_int32],
    "tfring_timeline_stop": [c_char_p],
    "tfring_statistics_start": [None],
    "tfring_statistics_stop": [None],
    "tfring_statistics": [c_char_p],
    "tfring_input_seconds": [c_double],
    "tfring_offload_count_allocations": [None],
    "tfring_offload_statistics": [c_int32, c_int64, _INT64S],
    "tfring_describe_gpus": [c_char_p],
    "tfring_nccl_version": [c_int32],
    "tfring_predict_allreduce": [
        *(c_char_p, c_int32, c_int32, ctypes.POINTER(c_double)),
        *(c_int32, c_int64),
    ],
}

_forked = False

# The variables for this process alone that were taken from the environment.
_elastic_variables: dict[str, str] = {}


def elastic_variable(name: str) -> str:
    """Takes a variable out of the environment, and keeps it; "" if unset.

    A program that this process starts would otherwise take itself for the
    worker.
    """
    if name in os.environ:
        _elastic_variables[name] = os.environ.pop(name)
    return _elastic_variables.get(name, "")


def is_tcp_job() -> bool:
    """Tells whether the ranks connect to a launcher by TCP, without MPI.

    These are elastic jobs, and jobs in which a program or an engine starts a
    function.
    """
    return bool(elastic_variable("TFRING_ELASTIC_RENDEZVOUS"))


def is_elastic() -> bool:
    """Tells whether this process is in a job whose ranks may change."""
    # Take both variables out of the environment.
    is_fixed = bool(elastic_variable("TFRING_ELASTIC_FIXED"))
    return is_tcp_job() and not is_fixed


def no_mpi() -> RuntimeError:
    """Returns the error for code that needs MPI in a job without it."""
    return RuntimeError(
        "tfring: this job has no MPI, and no communicator: its launcher "
        "connects the ranks by TCP."
    )


@functools.cache
def mpi() -> Any:
    """Returns `mpi4py.MPI` on the libmpi of the op library, initialized.

    Raises:
        RuntimeError: The job has no MPI.
    """
    if is_tcp_job():
        raise no_mpi()
    # mpi4py would take the first libmpi that it finds.
    os.environ.setdefault("MPI4PY_LIBMPI", str(abi.mpi_library()))
    fabrics.skip_absent(os.environ, fabrics.files_of_settings(os.environ))
    try:
        limit = settings.seconds("TFRING_INIT_TIMEOUT_SECONDS", INIT_SECONDS)
    except ValueError:  # `init` will report it
        limit = INIT_SECONDS
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None and loaded.Is_initialized():
        limit = 0  # without other ranks nothing blocks
    with watchdog.ends_this_process(
        limit,
        f"tfring.init: MPI has not started for {limit:g} s. Another rank of "
        "the job has not come to tfring.init, or a machine cannot be reached. "
        "TFRING_INIT_TIMEOUT_SECONDS is the limit.",
    ):
        from mpi4py import MPI

        if MPI.Is_finalized():
            raise RuntimeError(
                "tfring: MPI has been finalized in this process, and cannot "
                "be started again."
            )
        if not MPI.Is_initialized():  # mpi4py.rc.initialize is False.
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
            # Finalize at exit, after all hooks that are registered later.
            atexit.register(_finalize)
    return MPI


def check_settings() -> None:
    """Raises a ValueError if a setting in the environment is unusable."""
    settings.metrics_endpoint()
    unusable = capi().tfring_check_options()
    if unusable is not None:
        raise ValueError(unusable.decode())


def _finalize() -> None:
    if not _forked and not mpi().Is_finalized():
        mpi().Finalize()


def disown() -> None:
    """Cuts a forked child off from the parent's MPI and engine.

    The child has copies of their memory, none of their threads, and shares
    their connections. Its `MPI_Finalize` would hang, and the parent's, too.
    """
    global _forked
    _forked = True
    skip_finalize()


def skip_finalize() -> None:
    """Lets this process end without `MPI_Finalize`.

    It must not call MPI again. Works with Open MPI, which is told that it is
    finalized.
    """
    with contextlib.suppress(OSError, ValueError):  # other MPIs lack it
        library = abi.open_mpi(abi.mpi_library())
        state = c_int32.in_dll(library, "ompi_mpi_state")
        state.value = _OMPI_MPI_STATE_FINALIZE_COMPLETED


def is_disowned() -> bool:
    """Returns True in a child that a rank has forked."""
    return _forked


def check_not_forked() -> None:
    """Raises a RuntimeError in a child that a rank has forked."""
    if _forked:
        raise RuntimeError(
            "tfring: this process was forked from a rank after tfring.init(), "
            "and only the rank itself can run collectives. Leave them to it, "
            "or start processes of their own by multiprocessing's 'spawn'."
        )


def ops() -> Any:
    """Returns the generated wrappers of the ops: `ops().tfring_done(...)`."""
    check_not_forked()
    return _ops()


@functools.cache
def _ops() -> Any:
    import tensorflow as tf

    # Load MPI first: the op library then finds this libmpi by its soname.
    if is_tcp_job():
        # The op library needs libmpi to load, and this job does not start it.
        abi.open_mpi(abi.mpi_library())
    else:
        mpi()
    return tf.load_op_library(str(abi.LIBRARY))


@functools.cache
def capi() -> ctypes.CDLL:
    """Returns the functions of `tfring_ops/capi/capi.h`."""
    # TensorFlow must open the library first, because it sees only ops that are
    # registered while it opens a library itself.
    ops()
    return _with_signatures()


@functools.cache
def capi_without_ops() -> ctypes.CDLL:
    """Returns the C API in a program that takes part in no job.

    TensorFlow and MPI are not started, and cannot be used later.
    """
    abi.open_mpi(abi.mpi_library())
    return _with_signatures()


def _with_signatures() -> ctypes.CDLL:
    library = ctypes.CDLL(str(abi.LIBRARY))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

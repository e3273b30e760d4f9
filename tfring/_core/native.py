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

# Open MPI's value, for a process that must not call MPI any more.
_OMPI_MPI_STATE_FINALIZE_COMPLETED = 5

# tfring_ops/capi/capi.h: tfring_connect.
CONNECT = ctypes.CFUNCTYPE(c_int32, c_int32, c_int32)

_INT32S = ctypes.POINTER(c_int32)
_INT64S = ctypes.POINTER(c_int64)

# The functions of `tfring_ops/capi/capi.h`: the type of the result, then those
# of the arguments.
_SIGNATURES: dict[str, list[Any]] = {
    "tfring_check_options": [c_char_p],
    "tfring_init": [c_char_p, c_int32],
    "tfring_init_sockets": [
        *(c_char_p, c_int64, c_int32, c_int32, _INT32S, CONNECT)
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
        *(c_char_p, c_int32, c_int32, ctypes.POINTER(c_double), c_int64)
    ],
}

_forked = False

# By name, the variables of an elastic job's launcher for this process.
_elastic_variables: dict[str, str] = {}


def elastic_variable(name: str) -> str:
    """Takes one out of the environment, and keeps it; "" if it is not set.

    A program that this process starts would take itself for the worker.
    """
    if name in os.environ:
        _elastic_variables[name] = os.environ.pop(name)
    return _elastic_variables.get(name, "")


def is_tcp_job() -> bool:
    """Tells if the ranks meet at a launcher, by TCP, and have no MPI.

    They do in elastic jobs, and where a program or an engine starts a function.
    """
    return bool(elastic_variable("TFRING_ELASTIC_RENDEZVOUS"))


def is_elastic() -> bool:
    """Tells if this process is a worker of a job whose ranks may change."""
    # Both are taken out of the environment.
    is_fixed = bool(elastic_variable("TFRING_ELASTIC_FIXED"))
    return is_tcp_job() and not is_fixed


def no_mpi() -> RuntimeError:
    """The error of whoever needs MPI in such a job."""
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
    # There may be several, and mpi4py would take the first it finds.
    os.environ.setdefault("MPI4PY_LIBMPI", str(abi.mpi_library()))
    fabrics.skip_absent(os.environ, fabrics.files_of_settings(os.environ))
    try:
        limit = settings.seconds("TFRING_INIT_TIMEOUT_SECONDS", INIT_SECONDS)
    except ValueError:  # `init` will say so.
        limit = INIT_SECONDS
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None and loaded.Is_initialized():
        limit = 0  # There is nothing to wait for.
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
            # The starter ends it, after all that is registered later.
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
    """Cuts a forked child off from MPI and the engine, its parent's.

    The child has a copy of their memory, but none of their threads, and shares
    their connections: its `MPI_Finalize` would hang, and the parent's, too.
    """
    global _forked
    _forked = True
    skip_finalize()


def skip_finalize() -> None:
    """Lets this process end without `MPI_Finalize`, and not call MPI any more.

    Open MPI's alone: it believes to have finalized.
    """
    with contextlib.suppress(OSError, ValueError):  # Another MPI has no state.
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

    # MPI is loaded first: the library then finds the same libmpi by its soname.
    if is_tcp_job():
        # It is only loaded, and no part of a job.
        abi.open_mpi(abi.mpi_library())
    else:
        mpi()
    return tf.load_op_library(str(abi.LIBRARY))


@functools.cache
def capi() -> ctypes.CDLL:
    """Returns the functions of `tfring_ops/capi/capi.h`."""
    # TensorFlow must open it first: it sees only those ops that are registered
    # while it opens the library itself.
    ops()
    return _with_signatures()


@functools.cache
def capi_without_ops() -> ctypes.CDLL:
    """Returns the same for a program that takes part in no job.

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

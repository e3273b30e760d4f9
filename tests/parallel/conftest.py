"""Every rank runs every test: `tfringrun -np 4 pytest tests/parallel`.

A test is a collective. A failure on one rank leaves the remaining ranks
waiting, so the failing rank reports it and ends the job.

With TFRING_TEST_DEVICE=GPU:0 the tensors of the tests are on that device. If
TensorFlow has no GPU, the tests use the fake GPU of tests/gpu/fake/device, and
tests of XLA are skipped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import fake_driver
import helpers
import keras
import pytest
import tensorflow as tf
from keras.src.trainers import trainer

import bare_gpu
import tfring
from tfring._core import process_sets

# The limit of a test without a mark `timeout`; less than pytest-timeout's own,
# which cannot interrupt a rank that waits inside TensorFlow.
_TIMEOUT_SECONDS = 270


_DEVICE = os.environ.get("TFRING_TEST_DEVICE", "")
_ON_FAKE_GPU = bool(_DEVICE) and not tf.config.list_physical_devices("GPU")
if _ON_FAKE_GPU:
    bare_gpu.load_fake_gpu()
    # Keras resolves "auto" to XLA otherwise.
    trainer.Trainer._resolve_auto_jit_compile = lambda model: False
    # These optimizers create new ops after the placement of ops on devices.
    tf.config.optimizer.set_experimental_options(
        {
            "arithmetic_optimization": False,
            "constant_folding": False,
            "layout_optimizer": False,
        }
    )

# Computes products in float32, as on a CPU; a GPU uses 19 bits otherwise.
tf.config.experimental.enable_tensor_float_32_execution(False)

# Tests count requests, and the ranks' comparison would be among them.
os.environ["TFRING_STRAGGLERS"] = "0"

# Tests that fail with nightly builds until other packages follow, and why.
_EXPECTED_FAILURES = {
    "test_keras_hub": "keras_hub 0.32 imports what Keras 3.16 has moved",
}

# A test needs XLA if it has one of these parameters, or the mark `xla`.
_XLA = {
    "jit_compile": (True,),
    "mode": ("xla",),
    "how": ("compiled",),
}


def _needs_xla(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    parameters = call.params if call else {}
    return item.get_closest_marker("xla") is not None or any(
        parameters.get(name) in values for name, values in _XLA.items()
    )


# Skips by parameters and marks, not by errors, so that any other failure
# counts.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _leave_out_of_collections()
    for item in items:
        if _ON_FAKE_GPU and _needs_xla(item):
            reason = "XLA has no compiler for the fake device"
            item.add_marker(pytest.mark.skip(reason))
        if ".dev" in keras.version() and item.name in _EXPECTED_FAILURES:
            reason = _EXPECTED_FAILURES[item.name]
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _leave_out_of_collections() -> None:
    """Has the garbage collector no longer scan what is alive now.

    The objects of TensorFlow's modules are never freed, nor are the graphs of
    steps that Keras has trained: after some hundred tests, each clear_session()
    of Keras would scan them for a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _graphs_of_earlier_modules() -> Iterator[None]:
    yield
    _leave_out_of_collections()


@pytest.fixture(autouse=True)
def _on_device() -> Iterator[None]:
    with tf.device(_DEVICE) if _DEVICE else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session", autouse=True)
def _initialized() -> None:
    # TensorFlow makes its devices at its first op. XLA must know the op library
    # also when it is opened after that.
    tf.zeros([])
    tfring.init()


@pytest.fixture
def rank() -> int:
    return tfring.rank()


@pytest.fixture
def size() -> int:
    return tfring.size()


@pytest.fixture
def shared_path(tmp_path: Path) -> Path:
    """One directory for all ranks."""
    return tfring.broadcast_object(tmp_path, root_rank=0)


@pytest.fixture
def session() -> Iterator[tf.compat.v1.Session]:
    """Of TensorFlow 1, with a graph of its own."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield session


@pytest.fixture
def several_ranks(size: int) -> None:
    """Skips a test on one rank; it needs ranks that wait or disagree."""
    if size == 1:
        pytest.skip("one rank agrees with itself")


_AddSets = Callable[..., list[tfring.ProcessSet]]


@pytest.fixture
def sets() -> Iterator[_AddSets]:
    """Returns a function that adds process sets.

    All sets that a test has added are removed after it, also those that tfring
    has added for the ranks with the same shares.
    """
    before = process_sets.added()
    yield lambda *lists: [tfring.add_process_set(ranks) for ranks in lists]
    for process_set in process_sets.added():
        if process_set not in before:
            tfring.remove_process_set(process_set)


@pytest.fixture
def sets_of_one(sets: _AddSets, size: int) -> list[tfring.ProcessSet]:
    """A process set for each rank by itself."""
    return sets(*([rank] for rank in range(size)))


@pytest.fixture
def halves(sets: _AddSets, size: int) -> list[tfring.ProcessSet]:
    """The even ranks and the odd ones."""
    if size < 2:
        pytest.skip("one rank has no halves")
    return sets(range(0, size, 2), range(1, size, 2))


@pytest.fixture(params=list(helpers.MODES))
def mode(request: pytest.FixtureRequest) -> Callable[[object], object]:
    """A way to run a function that makes a step."""
    return helpers.MODES[request.param]


@pytest.fixture
def slow_streams() -> Iterator[fake_driver.Options | None]:
    """Makes every task of a stream start late by a random time.

    Only the fake driver can do this; the value is None with a real one.
    """
    options = fake_driver.options()
    if options is not None:
        options.delay_us = 500
    yield options
    if options is not None:
        options.delay_us = 0
        options.ignore_waits = 0


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xla: of jit_compile=True")
    # Opened before pytest captures output, for text that must be seen when a
    # rank dies.
    config._tfring_stderr = os.fdopen(os.dup(2), "w")
    from mpi4py import MPI

    config._tfring_reports = MPI.COMM_WORLD.rank == 0
    if not config._tfring_reports:
        config.option.xmlpath = None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config._tfring_reports:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        # The writer itself, as pytest has no option for no output at all.
        reporter._tw._file = open(os.devnull, "w")  # noqa: PTH123, SIM115


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] - 20 if mark else _TIMEOUT_SECONDS
    stderr = item.config._tfring_stderr
    timer = threading.Timer(seconds, _time_out, (item.nodeid, seconds, stderr))
    timer.start()
    # For a rank that holds Python's lock.
    faulthandler.dump_traceback_later(seconds + 10, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        timer.cancel()


def _time_out(test: str, seconds: float, stderr: TextIO) -> None:
    faulthandler.dump_traceback(file=stderr)
    # The launcher repeats the last line.
    print(f"{test} takes more than {seconds:g} s", file=stderr, flush=True)
    os._exit(1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _end_job(f"{report.nodeid} ({report.when})", report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _end_job(report.nodeid, report)


def pytest_internalerror(excrepr: object) -> None:
    _end_job("pytest itself", excrepr)


def _end_job(what: str, report: object) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size == 1:
        return  # pytest goes on, and reports at the end
    text = getattr(report, "longreprtext", None) or str(report)
    sections = [
        f"--- {title} ---\n{content}"
        for title, content in getattr(report, "sections", [])
    ]
    print(
        f"\n=== rank {world.rank} of {world.size}: {what} failed ===",
        text,
        *sections,
        sep="\n",
        file=sys.stderr,
        flush=True,
    )
    # Most failures happen on all ranks; let each say its own.
    time.sleep(1)
    world.Abort(1)

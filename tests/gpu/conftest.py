"""For the tests without TensorFlow: a GPU, and for more ranks the engine."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import bare_gpu

# The limit of a test that has no mark of its own.  A rank that waits inside the
# engine cannot be interrupted: it ends, and its job with it.
_TIMEOUT_SECONDS = int(os.environ.get("TFRING_TEST_SECONDS", "60"))


@pytest.fixture(scope="session")
def gpu() -> bare_gpu.Gpu:
    return bare_gpu.Gpu()


@pytest.fixture(scope="session")
def world() -> Iterator[Any]:
    """MPI's communicator, with an engine over it."""
    yield bare_gpu.start_engine()
    bare_gpu.stop_engine()


@pytest.fixture
def only_on_a_real_gpu() -> None:
    if bare_gpu.is_fake():
        pytest.skip("not on the fake device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    own = item.get_closest_marker("timeout")
    seconds = own.args[0] if own else _TIMEOUT_SECONDS
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()

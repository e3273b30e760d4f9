"""A job of this process alone, for tests that need one."""

import os

# TensorFlow counts the CPU's allocations with oneDNN alone, which it takes by
# itself on some CPUs.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"

import socket

import pytest

import tfring


@pytest.fixture
def initialized():
    tfring.init()


@pytest.fixture
def no_job():
    """Before and after `tfring.init`."""
    tfring.shutdown()
    yield
    tfring.init()


@pytest.fixture
def nobody():
    """An address that refuses connections, and that no process can take."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()

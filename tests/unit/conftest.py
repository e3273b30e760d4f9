"""A job of this process alone, for tests that need one."""

import os

# TensorFlow counts the CPU's allocations with oneDNN alone, which it takes by
# itself on some CPUs.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import pytest

import tfring


@pytest.fixture
def initialized():
    tfring.init()

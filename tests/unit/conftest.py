"""A job of this process alone, for tests that need one."""

import pytest

import tfring


@pytest.fixture
def initialized():
    tfring.init()

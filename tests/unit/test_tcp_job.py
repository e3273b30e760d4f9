"""How a worker of an elastic job joins, without a launcher."""

import types

import pytest

from tfring._core import tcp_job
from tfring._core.launcher_link import Over


def test_an_init_after_the_training_is_an_error():
    launcher = types.SimpleNamespace(ready=lambda *_, **__: Over(None))
    with pytest.raises(RuntimeError, match="has ended"):
        tcp_job._join_next(launcher, -1, None)

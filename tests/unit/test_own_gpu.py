"""Which GPU init gives a rank, with names in the place of devices."""

import os

import pytest
import tensorflow as tf

from tfring._core import runtime
from tfring._ops.choose_gpu import choose_gpu

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
SLOT = "TFRING_ELASTIC_SLOT"


@pytest.fixture
def choose(monkeypatch):
    """Calls choose_gpu on a rank; returns the visible GPUs, and the growth."""

    def run(gpus, local_rank, local_size, *, visible=None, made=False, **env):
        every = [f"gpu {number}" for number in range(gpus)]
        chosen = every if visible is None else visible

        def set_visible(device, kind):
            nonlocal chosen
            if made:
                raise RuntimeError("TensorFlow has made its devices")
            chosen = [device]

        for name, function in (
            ("list_physical_devices", lambda kind: every),
            ("get_visible_devices", lambda kind: chosen),
            ("set_visible_devices", set_visible),
        ):
            monkeypatch.setattr(tf.config, name, function)
        monkeypatch.setattr(runtime, "local_rank", lambda: local_rank)
        monkeypatch.setattr(runtime, "local_size", lambda: local_size)
        monkeypatch.setattr(os, "environ", env)
        choose_gpu()
        return chosen, env.get(GROWTH)

    return run


@pytest.mark.parametrize(
    ("gpus", "local_rank", "local_size", "how", "expected"),
    [
        (4, 3, 4, {}, (["gpu 3"], None)),
        (4, 0, 1, {}, (["gpu 0"], None)),
        # In an elastic job the slot decides.
        (4, 0, 1, {SLOT: "2"}, (["gpu 2"], None)),
        (2, 1, 2, {SLOT: "2"}, (["gpu 0"], None)),
        # More ranks than GPUs share them, and grow.
        (2, 5, 6, {}, (["gpu 1"], "true")),
        (1, 1, 2, {}, (["gpu 0"], "true")),
        (2, 5, 6, {GROWTH: "false"}, (["gpu 1"], "false")),
        # The script has chosen.
        (4, 1, 4, {"visible": ["gpu 2"]}, (["gpu 2"], None)),
        (4, 1, 4, {"visible": []}, ([], None)),
        (0, 0, 2, {}, ([], None)),
    ],
)
def test_choice(choose, gpus, local_rank, local_size, how, expected):
    assert choose(gpus, local_rank, local_size, **how) == expected


def test_too_late_is_a_warning(choose, caplog):
    assert choose(2, 1, 2, made=True) == (["gpu 0", "gpu 1"], None)
    assert "cannot take GPU 1" in caplog.text

"""Which GPU init gives a rank, with names in the place of devices."""

import pytest
import tensorflow as tf

from tfring._core import runtime
from tfring._training import choose_gpu


class Devices:
    """The GPUs of TensorFlow's configuration."""

    def __init__(self, count):
        self.all = [f"gpu {number}" for number in range(count)]
        self.visible = list(self.all)
        self.made = False

    def list_physical_devices(self, kind):
        assert kind == "GPU"
        return list(self.all)

    def get_visible_devices(self, kind):
        assert kind == "GPU"
        return list(self.visible)

    def set_visible_devices(self, device, kind):
        assert kind == "GPU"
        if self.made:
            raise RuntimeError("TensorFlow has made its devices")
        self.visible = [device]


@pytest.fixture
def choose(monkeypatch):
    """Calls choose_gpu on a rank; returns the visible GPUs, and the growth."""

    def run(devices, local_rank, local_size):
        for name in (
            "list_physical_devices",
            "get_visible_devices",
            "set_visible_devices",
        ):
            monkeypatch.setattr(tf.config, name, getattr(devices, name))
        monkeypatch.setattr(runtime, "local_rank", lambda: local_rank)
        monkeypatch.setattr(runtime, "local_size", lambda: local_size)
        choose_gpu.choose_gpu()
        return devices.visible, choose_gpu.os.environ.get(
            "TF_FORCE_GPU_ALLOW_GROWTH"
        )

    monkeypatch.setattr(choose_gpu.os, "environ", {})
    return run


def test_by_local_rank(choose):
    assert choose(Devices(4), 3, 4) == (["gpu 3"], None)
    assert choose(Devices(4), 0, 1) == (["gpu 0"], None)


def test_by_slot_where_others_come_and_go(choose):
    choose_gpu.os.environ["TFRING_ELASTIC_SLOT"] = "2"
    assert choose(Devices(4), 0, 1) == (["gpu 2"], None)
    assert choose(Devices(2), 1, 2) == (["gpu 0"], None)


def test_more_ranks_than_gpus_share_and_grow(choose):
    assert choose(Devices(2), 5, 6) == (["gpu 1"], "true")
    assert choose(Devices(1), 1, 2) == (["gpu 0"], "true")
    choose_gpu.os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    assert choose(Devices(2), 5, 6) == (["gpu 1"], "false")


def test_what_the_script_has_made_visible_is_left_alone(choose):
    devices = Devices(4)
    devices.visible = ["gpu 2"]
    assert choose(devices, 1, 4) == (["gpu 2"], None)
    devices.visible = []
    assert choose(devices, 1, 4) == ([], None)


def test_too_late_is_a_warning(choose, monkeypatch):
    said = []
    monkeypatch.setattr(
        choose_gpu.logging,
        "warning",
        lambda text, *rest: said.append(text % rest),
    )
    devices = Devices(2)
    devices.made = True
    assert choose(devices, 1, 2) == (devices.all, None)
    assert "cannot take GPU 1" in said[0]


def test_without_a_gpu(choose):
    assert choose(Devices(0), 0, 2) == ([], None)

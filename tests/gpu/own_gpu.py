"""Ranks that see all GPUs of a machine, and use one each.

TensorFlow must not have made a device in the process yet, so this test runs in
its own job. On the fake GPU, `make gpu` runs it with three ranks and two GPUs.
"""

from __future__ import annotations

import os

import tensorflow as tf

import bare_gpu
import tfring


def test_the_idiom_of_horovods_scripts():
    if bare_gpu.is_fake():
        bare_gpu.load_fake_gpu()
    tfring.init()
    rank, size = tfring.local_rank(), tfring.local_size()
    gpus = tf.config.list_physical_devices("GPU")
    assert len(gpus) == bare_gpu.number_of_gpus()
    own = gpus[rank % len(gpus)]
    assert tf.config.get_visible_devices("GPU") == [own]
    if size > len(gpus):
        assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    tf.config.set_visible_devices(own, "GPU")
    # A rank that has joined takes its GPU, too, though it has no tensors there.
    with tf.device("GPU:0"):
        ones = tf.ones([1000])
        if tfring.rank() != 1:
            alone = tfring.allreduce(ones, op=tfring.Sum)
            assert set(alone.numpy()) == {tfring.size() - 1.0}
        tfring.join()
    for step in range(3):
        with tf.device("GPU:0"):
            total = tfring.allreduce(tf.fill([1000], step + 1.0), op=tfring.Sum)
        assert total.device.endswith("GPU:0")
        assert set(total.numpy()) == {(step + 1.0) * tfring.size()}
    if bare_gpu.is_fake():  # by the engine alone
        assert bare_gpu.loaded_modules() == 1
    other = gpus[(rank + 1) % len(gpus)]
    if other != own:  # tfring, too, has used its own alone
        assert bare_gpu.context_exists(gpus.index(own))
        assert not bare_gpu.context_exists(gpus.index(other))

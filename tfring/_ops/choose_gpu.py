"""Gives each rank of a machine its GPU, unless the script has chosen one."""

from __future__ import annotations

import os

import tensorflow as tf
from absl import logging

from tfring._core import runtime


def choose_gpu() -> None:
    """Makes the rank's GPU the only GPU that TensorFlow uses.

    It is chosen by the rank's place on its machine, modulo the number of GPUs.
    In an elastic job this place may change, but TensorFlow's devices cannot:
    there the process keeps one slot of the machine for its life, and the slot
    decides. With more ranks than GPUs, TensorFlow allocates memory as needed;
    otherwise the first rank would take all of it. A script that makes fewer
    GPUs visible makes its own choice, before this call or after it.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    if runtime.local_size() > len(gpus):
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if len(tf.config.get_visible_devices("GPU")) != len(gpus):
        return
    slot = os.environ.get("TFRING_ELASTIC_SLOT", runtime.local_rank())
    number = int(slot) % len(gpus)
    try:
        tf.config.set_visible_devices(gpus[number], "GPU")
    except RuntimeError:
        logging.warning(
            "tfring: TensorFlow has made its devices before tfring.init, so "
            "this rank cannot take GPU %d for its own. It uses GPU 0, and so "
            "does every rank of this machine that has made them. Call "
            "tfring.init() before anything of TensorFlow's, or choose with "
            "tf.config.set_visible_devices.",
            number,
        )

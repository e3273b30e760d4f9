"""A step that needs more memory than there is, by offload.

    python examples/larger_than_memory.py
    tfringrun -np 2 python examples/larger_than_memory.py

TensorFlow gets 96 MiB, whatever the machine has. The step of this network needs
160 MiB, most of it for what backpropagation takes in of the forward pass: with
--offload=none it fails. Moved to memory that is not TensorFlow's, it fits.
"""

import os

# Read when TensorFlow starts: an allocator with a bound, as GPUs have.
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = "96"

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfring

_OFFLOAD = flags.DEFINE_enum(
    "offload", "all", ["none", "all", "conv"], "What is moved."
)
_STEPS = flags.DEFINE_integer("steps", 6, "Steps of an epoch.")

_BATCH_SIZE = 2048
_WIDTH = 256


def make_model():
    """Sixteen layers, of each of which backpropagation needs 8 MiB."""
    return keras.Sequential(
        [
            keras.Input((_WIDTH,)),
            *(keras.layers.Dense(_WIDTH, activation="gelu") for _ in range(16)),
            keras.layers.Dense(2),
        ]
    )


def load_data():
    """Points on both sides of a plane."""
    rng = np.random.default_rng(tfring.rank())
    x = rng.normal(size=(_STEPS.value * _BATCH_SIZE, _WIDTH))
    return x.astype("float32"), (x[:, :8].sum(axis=1) > 0).astype("int32")


def main(_):
    tfring.init()
    keras.utils.set_random_seed(1)
    offload = None
    if _OFFLOAD.value != "none":
        offload = tfring.Offload(_OFFLOAD.value)
    model = make_model()
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(1e-3), offload=offload
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    callbacks = [tfring.callbacks.BroadcastGlobalVariablesCallback(0)]
    try:
        history = model.fit(
            *load_data(),
            batch_size=_BATCH_SIZE,
            epochs=2,
            callbacks=callbacks,
            verbose=0,
        )
    except tf.errors.ResourceExhaustedError:
        raise SystemExit("The step does not fit in 96 MiB.") from None
    if tfring.rank() == 0:
        first, last = history.history["loss"]
        moved = offload.statistics() if offload else None
        print(f"loss {first:.4f} {last:.4f}")
        if moved:
            print(f"moved in a step: {moved.moved_bytes / 2**20:.0f} MiB")


if __name__ == "__main__":
    app.run(main)

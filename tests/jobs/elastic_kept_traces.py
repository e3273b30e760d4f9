"""Training that prints the jobs of its traces.

For test_elastic_kept_traces.py. The second worker is killed; the first one
continues alone until another one joins.
"""

import json
import os
import signal

import keras
import numpy as np
import tensorflow as tf

import tfring
from tfring._core import runtime

WORKER = os.environ["TFRING_ELASTIC_WORKER"]
# The first worker's jobs: with the second worker, alone, and with the joiner.
LAST_JOB_OF_THE_FIRST = 3
# The job of each trace, by its number in this process.
TRACED_IN = []


class Traced(keras.layers.Layer):
    """Records each trace of the layer."""

    def call(self, inputs):
        if not tf.executing_eagerly():
            TRACED_IN.append(runtime.job_number())
        return inputs


class Steps(keras.callbacks.Callback):
    """Records the sizes of the jobs, and stops the training in the last job."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def on_train_batch_end(self, batch, logs=None):
        if not self.sizes or self.sizes[-1] != tfring.size():
            self.sizes.append(tfring.size())
        if WORKER == "w2" and batch == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if runtime.job_number() == LAST_JOB_OF_THE_FIRST:
            self.model.stop_training = True


def main():
    tfring.init()
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), Traced(), keras.layers.Dense(1)]
    )
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam())
    model.compile(optimizer, "mse", jit_compile=False)
    TRACED_IN.clear()
    steps = Steps()
    x = np.ones((4000, 4), "float32")
    tfring.elastic.fit(
        model,
        x,
        x[:, :1],
        batch_size=2,
        epochs=100_000,
        callbacks=[steps],
        verbose=0,
        keep_traces=True,
    )
    weights = b"".join(each.tobytes() for each in model.get_weights())
    result = {
        "worker": WORKER,
        "sizes": steps.sizes,
        "traced in": TRACED_IN,
        "weights": weights.hex(),
    }
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

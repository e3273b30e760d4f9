"""Functions for ranks; every executor and raylet can import this module."""

import os
import signal
from pathlib import Path

ROWS, BATCH = 96, 24


def train():
    """Trains on the same global batches on any number of ranks."""
    import keras
    import numpy as np

    import tfring

    tfring.init()
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 8)).astype("float32")
    y = x[:, :1] * 2 - x[:, 1:2]
    rank, size = tfring.rank(), tfring.size()
    share = BATCH // size
    rows = np.arange(ROWS).reshape(-1, size, share)[:, rank].reshape(-1)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.Dense(1),
        ]
    )
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "mse")
    model.fit(
        x[rows], y[rows], batch_size=share, epochs=2, shuffle=False, verbose=0
    )
    weights = [weight.tolist() for weight in model.get_weights()]
    return (rank, size, tfring.local_size()), weights


def raise_on(rank):
    """Raises on one rank, while the others wait in a collective."""
    import tfring

    tfring.init()
    tfring.allreduce(1.0)
    if tfring.rank() == rank:
        raise KeyError(f"no such column: rank {rank}")
    tfring.allreduce(1.0, name="never")


def _leave_number(folder, rank):
    unfinished = Path(folder) / f".{os.getpid()}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(Path(folder) / f"rank{rank}")


def reduce(folder):
    """Leaves its process's number, and calls collectives until it is killed."""
    import tfring

    tfring.init()
    _leave_number(folder, tfring.rank())
    while True:
        tfring.allreduce(1.0)


def sleep(folder):
    """Leaves its process's number, and waits for a signal."""
    _leave_number(folder, int(os.environ["TFRING_ELASTIC_WORKER"][1:]) - 1)
    while True:
        signal.pause()


def train_elastically(folder, steps):
    """Counts steps by collectives; returns them, and the sizes on the way.

    It goes on until there were three ranks, fewer, and three again.
    """
    import time

    import tensorflow as tf

    import tfring

    tfring.init()
    total = tf.Variable(0.0)
    state = tfring.elastic.TensorFlowState([total], step=0, sizes=[])

    @tfring.elastic.run
    def loop(state):
        while state.step < steps or state.sizes.count(3) < 2:
            total.assign_add(tfring.allreduce(1.0))
            state.step += 1
            if state.sizes[-1:] != [tfring.size()]:
                state.sizes = [*state.sizes, tfring.size()]
            time.sleep(0.05)
            state.commit()
            # Who is lost now is lost after a commit.
            _leave_number(folder, tfring.rank())

    loop(state)
    return state.step, float(total), state.sizes

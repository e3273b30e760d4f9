"""Measures what a commit of an elastic state with sharded parameters costs.

    tfringrun -np 3 --elastic python benchmarks/commits.py [WIDTH] [LAYERS]

Prints for rank 0 how long a commit takes, how many bytes the rank sends, and
how many the commit keeps in host memory; the bytes also for each weight. The
model is a stack of `LAYERS` dense layers of `WIDTH` units, with Adam.
"""

import statistics
import sys
import time

import keras
import numpy as np

import tfring

COMMITS = 7


def build(width, layers):
    keras.utils.set_random_seed(1)
    with tfring.shard_parameters():
        model = keras.Sequential(
            [keras.Input((width,))]
            + [keras.layers.Dense(width) for _ in range(layers)]
        )
    model.compile(
        tfring.DistributedOptimizer("adam", shard_states=True),
        "mse",
        jit_compile=False,
    )
    return model


def kept_bytes(value):
    """Returns the bytes of the arrays in a commit."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return 0
    return sum(map(kept_bytes, value))


def main():
    width, layers = map(int, [*sys.argv[1:], 2048, 4][:2])
    tfring.init()
    model = build(width, layers)
    state = tfring.elastic.TensorFlowKerasState(model)
    seconds, sent = [], []

    @tfring.elastic.run
    def train(state):
        for _ in range(COMMITS):
            tfring.barrier()
            before = sum(tfring.statistics().sent_bytes.values())
            begin = time.perf_counter()
            state.commit()
            seconds.append(time.perf_counter() - begin)
            after = sum(tfring.statistics().sent_bytes.values())
            sent.append(after - before)

    train(state)
    if tfring.rank() == 0:
        weights = model.count_params()
        kept = kept_bytes(state._saved)
        print(
            f"{tfring.size()} ranks, {weights / 1e6:.1f} million weights: "
            f"{statistics.median(seconds):.3f} s, "
            f"sent {sent[-1] / 1e6:.1f} MB ({sent[-1] / weights:.1f} a weight)"
            f", kept {kept / 1e6:.1f} MB ({kept / weights:.1f} a weight)",
            flush=True,
        )


if __name__ == "__main__":
    main()

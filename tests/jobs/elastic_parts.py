"""Training with all that is each rank's own, for test_elastic_parts.py.

Shares of the optimizer's states, of the data and of the seeds, a process set, a
learning rate by the number of ranks: a worker is killed, another joins.
"""

import hashlib
import json
import os
import signal

import keras
import numpy as np
import tensorflow as tf

import tfring

ROWS, BATCH_SIZE, EPOCHS, RANKS = 500, 4, 3, 3
# So many epochs there are at most until another worker has joined.
MOST_EPOCHS = 500
RATE = 0.001
WORKER = os.environ.get("TFRING_ELASTIC_WORKER", "")


def make_model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(17, activation="tanh"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
    )
    optimizer = tfring.DistributedOptimizer(
        keras.optimizers.Adam(RATE), shard_states=True
    )
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def seeds_of(model):
    return [
        int(number)
        for variable in model.non_trainable_variables
        if "seed" in variable.path
        for number in np.ravel(variable)
    ]


@tfring.elastic.run
def train(state, x, y):
    model, size = state.model, tfring.size()
    state.sizes.append(size)
    even = tfring.add_process_set(range(0, size, 2))
    # After a loss this set has all remaining ranks.
    pair = tfring.add_process_set([0, 1])
    # Each rank has its own noise, even if it joined later.
    seeds = tfring.allgather_object(seeds_of(model))
    assert len({tuple(each) for each in seeds}) == size, seeds
    indices = tf.data.Dataset.range(ROWS)
    while state.epoch < EPOCHS or state.sizes[-1] < RANKS:
        assert state.epoch < MOST_EPOCHS, state.sizes
        mine = tfring.data.shard(
            indices, seed=state.epoch, skip=len(state.seen)
        ).batch(BATCH_SIZE, drop_remainder=True)
        for rows in mine.as_numpy_iterator():
            model.train_on_batch(x[rows], y[rows])
            seen = tfring.allgather(tf.constant(rows))
            state.seen.extend(map(int, seen))
            if tfring.rank() % 2 == 0:
                ranks = tfring.allreduce(
                    tf.constant(1.0), op=tfring.Sum, process_set=even
                )
                assert float(ranks) == (size + 1) // 2
            if pair.included():
                ranks = tfring.allreduce(
                    tf.constant(1.0), op=tfring.Sum, process_set=pair
                )
                assert float(ranks) == 2
            rate = float(model.optimizer.learning_rate)
            assert abs(rate - RATE * size) < 1e-6, (rate, size)
            if WORKER == "w2" and model.optimizer.iterations == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            state.commit()
        state.counts.append([len(state.seen), len(set(state.seen))])
        state.epoch, state.seen = state.epoch + 1, []
        state.commit()


def main():
    tfring.init()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 8)).astype("float32")
    model = make_model()
    state = tfring.elastic.KerasState(
        model, epoch=0, seen=[], counts=[], sizes=[]
    )
    resets = []

    def scale():
        resets.append(tfring.size())
        model.optimizer.learning_rate = RATE * tfring.size()

    scale()
    state.register_reset_callbacks([scale])
    train(state, x, x[:, :1] - x[:, 1:2])
    weights = b"".join(each.tobytes() for each in model.get_weights())
    result = {
        "worker": WORKER,
        "rank": tfring.rank(),
        "sizes": state.sizes,
        "resets": resets,
        "counts": state.counts,
        "digest": hashlib.sha256(weights).hexdigest(),
    }
    print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

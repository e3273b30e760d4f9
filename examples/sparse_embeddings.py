"""Word vectors from Python's manual: gradients that touch a few rows of many.

    tfringrun -np 2 python examples/sparse_embeddings.py
    tfringrun -np 2 python examples/sparse_embeddings.py --sparse_as_dense

A step looks up some rows of two large tables, so that their gradients are
tf.IndexedSlices: rows and their numbers. The ranks gather them from each other,
and add up rows of one number; with the flag they reduce whole tables. The
result is the same within rounding.
"""

import re
import time
from collections import Counter
from pydoc_data import topics

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfring

_SPARSE_AS_DENSE = flags.DEFINE_bool("sparse_as_dense", False, "Whole tables.")
_STEPS = flags.DEFINE_integer("steps", 300, "Batches of each rank.")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 1024, "Pairs a step, per rank."
)
_WIDTH = flags.DEFINE_integer("width", 32, "Numbers of a word's vector.")
_WINDOW = flags.DEFINE_integer("window", 3, "How far away a neighbour may be.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.03, "That of one rank.")
_MIN_RANKED = flags.DEFINE_float("min_ranked", 0.62, "To end in success.")


def load_data():
    """Returns the words and all pairs of neighbours in the text, shuffled."""
    text = "\n".join(text for _, text in sorted(topics.topics.items()))
    tokens = re.findall(r"[a-z_]+", text.lower())
    counts = Counter(tokens)
    words = [word for word, count in counts.most_common() if count >= 3]
    number = {word: i for i, word in enumerate(words)}
    text = np.array([number[token] for token in tokens if token in number])
    pairs = [
        np.stack([text[:-distance], text[distance:]], axis=1)
        for distance in range(1, _WINDOW.value + 1)
    ]
    return words, np.random.default_rng(0).permutation(np.concatenate(pairs))


def main(_):
    tfring.init()
    rank, size = tfring.rank(), tfring.size()
    words, pairs = load_data()
    test, pairs = pairs[:2000], pairs[2000:][rank::size]
    random = np.random.default_rng(rank + 1)

    keras.utils.set_random_seed(0)
    shape = len(words), _WIDTH.value
    vectors = tf.Variable(tf.random.normal(shape, stddev=0.1), name="vectors")
    contexts = tf.Variable(tf.zeros(shape), name="contexts")
    optimizer = keras.optimizers.SGD(_LEARNING_RATE.value * size)

    def scores(words, others):
        looked_up = tf.gather(vectors, words), tf.gather(contexts, others)
        return tf.reduce_sum(looked_up[0] * looked_up[1], axis=-1)

    @tf.function(jit_compile=False)  # XLA makes every gradient dense
    def train_step(words, neighbours, strangers):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                tf.nn.softplus(-scores(words, neighbours))
                + tf.nn.softplus(scores(words, strangers))
            )
        tape = tfring.DistributedGradientTape(
            tape, sparse_as_dense=_SPARSE_AS_DENSE.value
        )
        gradients = tape.gradient(loss, [vectors, contexts])
        optimizer.apply_gradients(
            zip(gradients, [vectors, contexts], strict=True)
        )
        return isinstance(gradients[0], tf.IndexedSlices)

    tfring.broadcast_variables([vectors, contexts], root_rank=0)
    for step in range(_STEPS.value):
        batch = random.choice(pairs, _BATCH_SIZE.value)
        strangers = random.choice(pairs[:, 1], _BATCH_SIZE.value)
        sparse = train_step(batch[:, 0], batch[:, 1], strangers)
        if step == 0:
            start = time.perf_counter()  # tracing is over
    ms = (time.perf_counter() - start) / max(_STEPS.value - 1, 1) * 1e3

    # Which does the model think the likelier: the neighbour in a text that it
    # has not seen, or a word of which it knows nothing?
    strangers = np.random.default_rng(0).permutation(test[:, 1])
    ranked = np.mean(
        scores(test[:, 0], test[:, 1]) > scores(test[:, 0], strangers)
    )
    norms = tfring.allgather([tf.norm(vectors), tf.norm(contexts)]).numpy()
    identical = (norms.reshape(size, 2) == norms[:2]).all()
    if rank == 0:
        print(f"{len(words)} words, sparse gradients: {bool(sparse)}")
        print(f"{ms:.2f} ms a step, norms {norms[0]:.4f} {norms[1]:.4f}")
        print(f"neighbours told from strangers: {ranked:.4f}")
        print(f"vectors identical on all ranks: {'yes' if identical else 'NO'}")
    return 0 if identical and ranked >= _MIN_RANKED.value else 1


if __name__ == "__main__":
    app.run(main)

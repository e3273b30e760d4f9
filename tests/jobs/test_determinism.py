"""TFRING_DETERMINISTIC=1: the same run gives the same bits again."""

import re

# Time decides which requests meet in a message, and which algorithm is the
# fastest: so single reductions come at random times, from threads.
RUN = """
import concurrent.futures, hashlib, os, random, time
import keras
import numpy as np
import tensorflow as tf
import tfring

def digest(arrays):
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()

def fit():
    rng = np.random.default_rng(tfring.rank())
    x, y = rng.normal(size=(48, 20)), rng.normal(size=(48, 1))
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20,))])
    for units in (300, 50, 1):
        model.add(keras.layers.Dense(units, "tanh"))
    optimizer = keras.optimizers.Adam(1e-2)
    model.compile(tfring.DistributedOptimizer(optimizer), "mse")
    model.fit(x, y, 8, shuffle=False, verbose=0)
    return digest(model.get_weights())

def singly():
    rng = np.random.default_rng(tfring.rank())
    values = [
        np.float32(rng.normal(size=rng.integers(900, 1000)) * 10.0 ** (i % 5))
        for i, rng in enumerate(np.random.default_rng(i) for i in range(12))
    ]
    values = [v * np.float32(tfring.rank() + 0.1) for v in values]
    def reduced(i):
        time.sleep(random.random() / 100)
        return tfring.allreduce(values[i], name=f"{i}").numpy()
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        return digest(threads.map(reduced, range(12)))

for threshold in ("", "0") * 2:
    os.environ.pop("TFRING_FUSION_THRESHOLD", None)
    if threshold:
        os.environ["TFRING_FUSION_THRESHOLD"] = threshold
    tfring.init()
    print("bits", threshold or "default", fit(), *{singly() for _ in range(3)})
    tfring.shutdown()
"""


def test_the_same_run_gives_the_same_bits(run_job):
    output = run_job(3, RUN, env={"TFRING_DETERMINISTIC": "1"})
    bits = re.findall(r"^\[\d\] bits (\w+) (.+)$", output, re.MULTILINE)
    assert len(bits) == 3 * 4
    # Both runs and all ranks give one result for each threshold.
    assert len(set(bits)) == 2, bits
    assert {threshold for threshold, _ in bits} == {"default", "0"}
    # Each result has one digest of `fit`, and one for all runs of single
    # tensors.
    assert [len(digests.split()) for _, digests in set(bits)] == [2, 2]

"""What ranks on several hosts do, for test_hosts.py and test_run_hosts.py.

host_program.py collectives|data_service|endless|sent_bytes
"""

import hashlib
import itertools
import json
import sys
import tempfile
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfring
from tfring.data import compute_worker
from tfring.data.compute_service import TfDataServiceConfig

# One element, fewer than ranks, some, an odd number of segments, 16 MiB.
COUNTS = (1, 3, 1001, 300_007, 4 << 20)


def collectives(rank, size):
    """Compares every collective with NumPy, and fits."""
    for count in COUNTS:
        check_collectives(count, rank, size)
    check_alltoall(rank, size)
    check_buckets_in_flight(rank, size)
    weights = fit(rank, size)
    digests = tfring.allgather_object(digest(weights))
    maps = Path("/proc/self/maps").read_text()
    print(
        f"rank {rank} of {size}, local rank {tfring.local_rank()} of "
        f"{tfring.local_size()}, host {tfring.cross_rank()} of "
        f"{tfring.cross_size()}; shared memory: {'memfd:tfring' in maps}; "
        f"weights identical: {len({*digests}) == 1}",
        flush=True,
    )


def check_collectives(count, rank, size):
    parts = [part_of(other, count) for other in range(size)]
    mine = tf.constant(parts[rank])
    together = tfring.allreduce(mine, op=tfring.Sum)
    # Sums of whole numbers have no rounding.
    np.testing.assert_array_equal(together, np.sum(parts, axis=0))
    noise = tfring.allreduce(mine / (3 + rank), op=tfring.Average)
    digests = tfring.allgather_object(digest([noise.numpy()]))
    assert len({*digests}) == 1, f"{count}: other bits on other ranks"
    np.testing.assert_array_equal(
        tfring.broadcast(mine, size - 1), parts[size - 1]
    )
    # Ranks bring different numbers of rows.
    rows = min(count, 40_000)
    np.testing.assert_array_equal(
        tfring.allgather(mine[: rows - (rank if rows > size else 0)]),
        np.concatenate(
            [
                part[: rows - (other if rows > size else 0)]
                for other, part in enumerate(parts)
            ]
        ),
    )
    even = count // size * size
    share = slice(rank * (even // size), (rank + 1) * (even // size))
    np.testing.assert_array_equal(
        tfring.reducescatter(mine[:even], op=tfring.Sum),
        np.sum(parts, axis=0)[:even][share],
    )


def part_of(rank, count):
    return (
        np.random.default_rng([rank, count])
        .integers(-99, 99, count)
        .astype("float32")
    )


def check_alltoall(rank, size):
    """From rank a to rank b go a + b + 1 rows that say so."""
    mine = np.concatenate(
        [np.full(rank + b + 1, 10 * rank + b) for b in range(size)]
    )
    splits = [rank + b + 1 for b in range(size)]
    got, got_splits = tfring.alltoall(tf.constant(mine), splits)
    np.testing.assert_array_equal(got_splits, splits)
    np.testing.assert_array_equal(
        got,
        np.concatenate(
            [np.full(a + rank + 1, 10 * a + rank) for a in range(size)]
        ),
    )


def check_buckets_in_flight(rank, size):
    """Between hosts, buckets of a step are on the wire at the same time."""
    path = tfring.broadcast_object(
        tempfile.mkstemp(suffix=".json")[1] if rank == 0 else None
    )
    variables = [tf.Variable(tf.ones([1 << 18])) for _ in range(6)]

    @tf.function
    def step():
        with tfring.DistributedGradientTape(
            tf.GradientTape(), op=tfring.Sum, groups=len(variables)
        ) as tape:
            loss = tf.add_n([tf.reduce_sum(v) for v in variables])
            loss *= rank + 1
        return tape.gradient(loss, variables)

    tfring.start_timeline(path)
    for _ in range(8):
        for gradient in step():
            expected = np.full([1 << 18], size * (size + 1) / 2)
            np.testing.assert_array_equal(gradient, expected)
    tfring.stop_timeline()
    if rank == 0:
        buckets = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in json.loads(Path(path).read_text())["traceEvents"]
            if event["pid"] == rank and event.get("cat") == "bucket"
        )
        pairs = itertools.pairwise(buckets)
        assert any(begin < end for (_, end), (begin, _) in pairs), buckets
        Path(path).unlink()


def fit(rank, size):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(3),
        ]
    )
    before = digest(model.get_weights())
    model.compile(
        tfring.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x = np.random.default_rng(rank).normal(size=(96, 20)).astype("float32")
    callbacks = [tfring.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(
        x,
        (x[:, 0] > 0).astype(int),
        batch_size=16,
        verbose=0,
        callbacks=callbacks,
    )
    assert digest(model.get_weights()) != before
    return model.get_weights()


def digest(arrays):
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()


def data_service(rank, size):
    """Workers of a data service on both hosts send elements to each rank."""
    with tempfile.TemporaryDirectory() as own:
        configfile = tfring.broadcast_object(f"{own}/config.json")
        job = threading.Thread(
            target=compute_worker.main,
            args=(1, "compute", configfile, 60, True),
        )
        job.start()
        config = TfDataServiceConfig.read(
            configfile, wait_for_file_creation=True
        )
        elements = tf.data.Dataset.range(6).send_to_data_service(config, rank)
        said = sorted(int(element) for element in elements)
        print(f"rank {rank} has {said}", flush=True)
        tfring.barrier(name="all have")
        config.compute_client().shutdown()
        job.join()
        tfring.barrier()


def endless(rank, size):
    """Reduces until it fails."""
    while True:
        total = tfring.allreduce(tf.ones([1 << 20]), op=tfring.Sum)
        assert float(total[0]) == size
        print("under way", flush=True)


def sent_bytes(rank, size):
    """Prints the bytes of allreduces, by tfring's count and by the link's."""
    x = tf.ones([2 << 20])
    tfring.allreduce(x)  # The links are measured and open by now.
    tfring.barrier()
    counted, passed = tfring.statistics(), link_bytes()
    for _ in range(3):
        tfring.allreduce(x)
    tfring.barrier()
    more, passed = tfring.statistics(), link_bytes() - passed
    between = more.sent_bytes_between_machines
    before = counted.sent_bytes_between_machines
    sent = {kind: between[kind] - before[kind] for kind in between}
    print(
        f"rank {rank} sent {sum(sent.values())} bytes, of them "
        f"{sent['allreduce']} in allreduces; its link sent {passed}",
        flush=True,
    )


def link_bytes():
    """Returns the bytes that the interface has sent, by the kernel's count."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            return int(figures.split()[8])
    raise RuntimeError("this host has no eth0")


if __name__ == "__main__":
    tfring.init()
    globals()[sys.argv[1]](tfring.rank(), tfring.size())
    tfring.shutdown()

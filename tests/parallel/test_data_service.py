"""tf.data's service: every rank is a worker, and takes elements from all."""

import itertools
import os
import threading
from pathlib import Path

import pytest
import tensorflow as tf
from helpers import thorough

import tfring
from tfring.data import compute_worker
from tfring.data.compute_service import (
    TfDataServiceConfig,
    send_to_data_service,
    tf_data_service,
)

pytestmark = pytest.mark.skipif(
    "TFRING_TEST_DEVICE" in os.environ, reason="tf.data works on the host"
)

COUNT = 24


@pytest.fixture
def configfile(shared_path):
    return shared_path / "config.json"


@pytest.fixture
def compute_job(configfile, rank):
    """Starts the ranks' workers, in threads beside the test."""
    jobs = []

    def start(dispatchers=1, side="compute"):
        job = threading.Thread(
            target=compute_worker.main,
            args=(dispatchers, side, str(configfile), 60, True),
            daemon=True,
        )
        job.start()
        jobs.append(job)
        return TfDataServiceConfig.read(str(configfile), True)

    yield start
    tfring.barrier(name="done")
    if rank == 0:
        TfDataServiceConfig.read(str(configfile)).compute_client().shutdown()
    for job in jobs:
        job.join(60)
        assert not job.is_alive()
    tfring.barrier(name="ended")
    assert not list(configfile.parent.iterdir())


def elements(dataset):
    return sorted(int(x) for x in dataset)


def test_each_rank_has_the_whole_dataset(compute_job, rank, size):
    config = compute_job()
    dataset = tf.data.Dataset.range(COUNT).map(lambda x: 10 * x)
    mine = dataset.send_to_data_service(config, rank, size)
    assert elements(mine) == [10 * x for x in range(COUNT)]
    # Each worker has all of it.
    mine = send_to_data_service(
        dataset, config, rank, processing_mode="parallel_epochs"
    )
    assert elements(mine) == sorted([10 * x for x in range(COUNT)] * size)


def test_ranks_share_a_dataset(compute_job, rank, size):
    config = compute_job()
    mine = tf.data.Dataset.range(COUNT).send_to_data_service(
        config, rank, size, reuse_dataset=True
    )
    of_all = tfring.allgather_object(elements(mine))
    assert sorted(itertools.chain(*of_all)) == list(range(COUNT))


def test_ranks_take_turns(compute_job, rank, size):
    config = compute_job()
    dataset = tf.data.Dataset.range(COUNT).repeat()
    mine = dataset.send_to_data_service(
        config, rank, size, reuse_dataset=True, round_robin=True
    )
    of_all = tfring.allgather_object(elements(mine.take(3)))
    assert [len(each) for each in of_all] == [3] * size
    assert set(itertools.chain(*of_all)) <= set(range(COUNT))


@pytest.mark.parametrize("side", ["compute", "training"])
@pytest.mark.parametrize("several", [thorough(False), True])
def test_dispatchers(compute_job, rank, size, several, side):
    config = compute_job(dispatchers=size if several else 1, side=side)
    with tf_data_service(config, rank) as address:
        mine = tf.data.Dataset.range(COUNT).apply(
            tf.data.experimental.service.distribute(
                "distributed_epoch", address
            )
        )
        assert elements(mine) == list(range(COUNT))
        # Before one ends, all have had theirs.
        of_all = tfring.allgather_object(address)
    assert len(set(of_all)) == config.dispatchers
    if side == "training":
        with pytest.raises(RuntimeError, match="training side"):
            mine.send_to_data_service(config, rank)


def test_jobs_that_cannot_start(configfile, rank, size):
    if rank == 0:  # of a job that was killed
        Path(f"{configfile}.dispatcher0").write_text("grpc://127.0.0.1:1")
    with pytest.raises(TimeoutError, match="dispatcher0 did not appear"):
        compute_worker.main(1, "training", str(configfile), 0, True)
    tfring.barrier()
    assert not list(configfile.parent.iterdir())
    with pytest.raises(ValueError, match="cannot be shared out among"):
        compute_worker.main(size + 1, "compute", str(configfile), 60, True)
    with pytest.raises(ValueError, match="pass --trusted-network"):
        compute_worker.main(1, "compute", str(configfile), 60)

"""Says which servers of rank 0's data service the other host reaches."""

import socket
import tempfile
import threading
from pathlib import Path

import tensorflow as tf

import tfring
from tfring.data import compute_worker
from tfring.data.compute_service import TfDataServiceConfig, tf_data_service


def reached(address):
    """Returns True if a server answers at the address."""
    try:
        socket.create_connection(address, 10).close()
    except ConnectionRefusedError:
        return False
    return True


def strangers_view(folder, *, trusted_network):
    """Rank 1 tries a dispatcher of rank 0, by its name."""
    if tfring.rank() == 0:
        configfile = f"{folder}/{trusted_network}"
        config = TfDataServiceConfig(
            *(1, 1, "training", [], configfile),
            trusted_network=trusted_network,
        )
        # It has no workers, and is not to wait for any.
        Path(f"{configfile}.workers").touch()
        with tf_data_service(config, 0) as address:
            port = int(address.rpartition(":")[2])
            tfring.broadcast_object((socket.gethostname(), port))
            tfring.barrier()
        return
    found = reached(tfring.broadcast_object(None))
    print(f"trusted {trusted_network}: {found}", flush=True)
    tfring.barrier()


def served(configfile):
    """The elements that the workers of both hosts send to each."""
    job = threading.Thread(
        target=compute_worker.main, args=(1, "compute", configfile, 60, True)
    )
    job.start()
    config = TfDataServiceConfig.read(configfile, wait_for_file_creation=True)
    elements = tf.data.Dataset.range(6).send_to_data_service(
        config, tfring.rank()
    )
    said = sorted(int(element) for element in elements)
    print(f"rank {tfring.rank()} has {said}", flush=True)
    tfring.barrier(name="all have")
    config.compute_client().shutdown()
    job.join()


def main():
    tfring.init()
    with tempfile.TemporaryDirectory() as own:
        folder = tfring.broadcast_object(own)
        strangers_view(folder, trusted_network=False)
        strangers_view(folder, trusted_network=True)
        try:
            compute_worker.main(1, "compute", "unused", 10)
        except ValueError as error:
            print(f"refused: {error}", flush=True)
        served(f"{folder}/config.json")
        tfring.barrier()
    tfring.shutdown()


main()

"""Says which servers of rank 0's data service the other host reaches."""

import socket
import threading

import tensorflow as tf

import tfring
from tfring.data import compute_worker
from tfring.data._registry import ComputeService, make_key
from tfring.data.compute_service import (
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)


def reached(address):
    """Returns True if a server answers at the address."""
    try:
        socket.create_connection(address, 10).close()
    except ConnectionRefusedError:
        return False
    return True


def strangers_view(*, trusted_network):
    """Rank 1 tries the registry and a dispatcher of rank 0, by its name."""
    ports = None
    if tfring.rank() == 0:
        key = make_key()
        service = ComputeService(1, 1, key, trusted_network)
        [[(_, port), *_]] = service.addresses().values()
        config = TfDataServiceConfig(
            *(1, 1, "training", service.addresses(), key),
            trusted_network=trusted_network,
        )
        config.compute_client().register_worker_for_dispatcher(0, 0)
        with tf_data_service(config, 0) as address:
            ports = [port, int(address.rpartition(":")[2])]
            tfring.broadcast_object([socket.gethostname(), ports])
            tfring.barrier()
        service.shutdown()
        return
    host, ports = tfring.broadcast_object(None)
    found = [reached((host, port)) for port in ports]
    print(f"trusted {trusted_network}: {found}", flush=True)
    tfring.barrier()


def served():
    """The elements that the workers of both hosts send to each."""
    config = service = None
    if tfring.rank() == 0:
        key = make_key()
        service = ComputeService(1, 2, key, trusted_network=True)
        config = TfDataServiceConfig(
            *(1, 2, "compute", service.addresses(), key), trusted_network=True
        )
    config = tfring.broadcast_object(config)
    workers = threading.Thread(target=compute_worker_fn, args=(config,))
    workers.start()
    elements = send_to_data_service(
        tf.data.Dataset.range(6), config, tfring.rank()
    )
    said = sorted(int(element) for element in elements)
    print(f"rank {tfring.rank()} has {said}", flush=True)
    tfring.barrier(name="all have")
    if service is not None:
        service.shutdown()
    workers.join()


def main():
    tfring.init()
    strangers_view(trusted_network=False)
    strangers_view(trusted_network=True)
    try:
        compute_worker.main(1, "compute", "unused", 10)
    except ValueError as error:
        print(f"refused: {error}", flush=True)
    served()
    tfring.shutdown()


main()

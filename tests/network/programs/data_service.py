"""A data service with workers on both hosts that send elements to each rank."""

import tempfile
import threading

import tensorflow as tf

import tfring
from tfring.data import compute_worker
from tfring.data.compute_service import TfDataServiceConfig

tfring.init()
with tempfile.TemporaryDirectory() as own:
    configfile = tfring.broadcast_object(f"{own}/config.json")
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
    tfring.barrier()
tfring.shutdown()

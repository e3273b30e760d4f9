"""horovod.tensorflow.data.compute_worker."""

import runpy

from tfring.data.compute_worker import main

if __name__ == "__main__":
    runpy.run_module("tfring.data.compute_worker", run_name="__main__")

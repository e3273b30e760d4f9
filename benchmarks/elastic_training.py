"""Trains without end, for elastic.py; each worker records its steps.

    elastic_training.py FOLDER LAYERS WIDTH BATCH_SIZE

FOLDER/records/WORKER has the lines "process HOST PID START" once all is
imported, "built", and for each step "step STARTS SIZE". Each line ends with the
seconds of the clock that all processes of a machine share. START is a time of
that clock; STARTS is the number of jobs that the process has been a member of.
"""

import os
import sys
import time
from pathlib import Path


def seconds_of_start() -> float:
    """Returns when this process was made."""
    ticks = int(
        Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    )
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf(
        "SC_CLK_TCK"
    )
    return time.monotonic() - age


STARTED = seconds_of_start()

import keras  # noqa: E402
import numpy as np  # noqa: E402

import tfring  # noqa: E402
from tfring._core import runtime  # noqa: E402

ROWS = 1 << 16
FEATURES = 32


class Record(keras.callbacks.Callback):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        path = folder / "records" / os.environ["TFRING_ELASTIC_WORKER"]
        self._file = path.open("a", buffering=1, encoding="ascii")

        self.note("process", os.uname().nodename, os.getpid(), STARTED)

    def note(self, *words: object) -> None:
        print(*words, time.monotonic(), file=self._file)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.note("step", runtime.job_number(), tfring.size())


def main() -> None:
    folder = Path(sys.argv[1])
    layers, width, batch_size = map(int, sys.argv[2:])
    record = Record(folder)
    tfring.init()
    record.note("built")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            *(keras.layers.Dense(width, "relu") for _ in range(layers)),
            keras.layers.Dense(1),
        ]
    )
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(1e-4))
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES))
    tfring.elastic.fit(
        model,
        x.astype("float32"),
        x[:, :1].astype("float32"),
        batch_size=batch_size,
        epochs=1_000_000,
        callbacks=[record],
        verbose=0,
        keep_traces=True,
    )


if __name__ == "__main__":
    main()

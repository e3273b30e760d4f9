"""Learns handwritten digits to the end, for elastic_accuracy.py.

    elastic_digits.py FOLDER SEED EPOCHS STEP_SECONDS

Each rank that is there at the end writes FOLDER/results/RANK, as JSON. A worker
raises an error where FOLDER/faults/WORKER is.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from elastic_training import Record, keras, tfring

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import keras_digits

BATCH_SIZE = 64


class Train(Record):
    """Makes steps as long as a larger model's, and may fail."""

    def __init__(self, folder: Path, step_seconds: float) -> None:
        super().__init__(folder)
        self._fault = folder / "faults" / os.environ["TFRING_ELASTIC_WORKER"]
        self._step_seconds = step_seconds

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        super().on_train_batch_end(batch, logs)
        time.sleep(self._step_seconds)
        if self._fault.exists():
            raise RuntimeError("a fault")


def main() -> None:
    folder = Path(sys.argv[1])
    seed, epochs = map(int, sys.argv[2:4])
    record = Train(folder, float(sys.argv[4]))
    tfring.init()
    record.note("built")
    x, x_test, y, y_test = keras_digits.load_data()
    keras.utils.set_random_seed(seed)
    model = keras_digits.make_model(
        tfring.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    )
    tfring.elastic.fit(
        model,
        *(x, y),
        batch_size=BATCH_SIZE,
        epochs=epochs,
        seed=seed,
        callbacks=[record],
        verbose=0,
    )
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    result = {
        "accuracy": accuracy,
        "loss": loss,
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    path = folder / "results" / str(tfring.rank())
    path.write_text(json.dumps(result))


if __name__ == "__main__":
    main()

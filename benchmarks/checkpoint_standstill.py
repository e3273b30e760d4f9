"""How long checkpoints hold up a training, beside Keras's own callbacks.

    tfringrun -np 2 python benchmarks/checkpoint_standstill.py

Each way saves every few steps of the same training. The standstill is the time
in the callback on rank 0. The delay is how much longer the step takes that
saves, with the one after it, than two others: so what a thread that writes
takes from the training counts there, too.
"""

import shutil
import time
from pathlib import Path

import keras
import numpy as np
from absl import app, flags

import tfring

_FOLDER = flags.DEFINE_string("folder", "standstill", "Where to write.")
_MEGABYTES = flags.DEFINE_integer("megabytes", 1000, "Bytes of all state.")
_EVERY = flags.DEFINE_integer("every", 10, "Steps from one to the next.")
_SAVES = flags.DEFINE_integer("saves", 3, "How many checkpoints.")
_SECONDS = flags.DEFINE_float("seconds", 0.3, "Pause of a step, for writing.")


class Times(keras.callbacks.Callback):
    """Notes how long each step takes, with its callbacks."""

    def on_train_begin(self, logs=None):
        self.ends = [time.perf_counter()]

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(_SECONDS.value)
        self.ends.append(time.perf_counter())


def train(saver):
    """Returns the seconds in the callback, and the seconds of each step."""
    keras.backend.clear_session()
    width = 1000
    layers = max(round(_MEGABYTES.value / 12), 1)  # 4 MB, and Adam's states.
    model = keras.Sequential(
        [
            keras.Input((width,)),
            *(keras.layers.Dense(width) for _ in range(layers)),
        ]
    )
    optimizer = tfring.DistributedOptimizer(keras.optimizers.Adam(1e-6))
    model.compile(optimizer, "mse")
    steps = _EVERY.value * _SAVES.value + 3
    x = np.zeros((steps, width), "float32")
    times = Times()
    callbacks = [
        tfring.callbacks.BroadcastGlobalVariablesCallback(0),
        times,
        saver,
    ]
    held = []
    save = saver.on_train_batch_end

    def timed_save(batch, logs=None):
        began = time.perf_counter()
        save(batch, logs)
        held.append(time.perf_counter() - began)

    saver.on_train_batch_end = timed_save
    model.fit(x, x, batch_size=1, verbose=0, callbacks=callbacks)
    return held, np.diff(times.ends)


def delays(seconds):
    """Returns by how many seconds each checkpoint delays the training."""
    every = _EVERY.value
    saving = [every * number for number in range(1, _SAVES.value + 1)]
    near = {step + after for step in saving for after in (0, 1)}
    others = [s for n, s in enumerate(seconds) if n > 2 and n not in near]
    usual = np.median(others)
    return [float(sum(seconds[[n, n + 1]]) - 2 * usual) for n in saving]


def written_megabytes(path):
    """Returns the size of each rank's part of a tfring checkpoint, in MB."""
    [newest] = sorted(path.glob("checkpoint-*"))[-1:]
    return [
        sum(file.stat().st_size for file in newest.glob(f"part-{rank:05d}.*"))
        / 1e6
        for rank in range(tfring.size())
    ]


def main(_):
    tfring.init()
    folder = Path(_FOLDER.value)
    every = _EVERY.value
    if tfring.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    savers = {
        "tfring.callbacks.Checkpoint": lambda path: tfring.callbacks.Checkpoint(
            path, every_steps=every, every_minutes=None, resume="never"
        ),
        "BackupAndRestore": lambda path: keras.callbacks.BackupAndRestore(
            path, save_freq=every
        ),
        "ModelCheckpoint": lambda path: keras.callbacks.ModelCheckpoint(
            path.with_suffix(".keras"), save_freq=every
        ),
    }
    for name, make in savers.items():
        held, seconds = train(make(folder / name))
        if tfring.rank() == 0:
            stands = sorted(held)[-_SAVES.value :]
            for what, each in (
                ("standstill", stands),
                ("delay", delays(seconds)),
            ):
                shown = ", ".join(f"{value:.2f}" for value in each)
                print(f"{name}: {what} {shown} s", flush=True)
        tfring.barrier()
    if tfring.rank() == 0:
        written = written_megabytes(folder / "tfring.callbacks.Checkpoint")
        shown = ", ".join(f"{each:.0f}" for each in written)
        print(f"tfring.callbacks.Checkpoint: the ranks write {shown} MB")
        shutil.rmtree(folder)


if __name__ == "__main__":
    app.run(main)

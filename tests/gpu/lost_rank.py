"""A rank is killed while its GPU still works; the job continues.

`make gpu` runs it with `tfringrun --elastic`, which starts a new worker with
the slot and the GPU of the lost rank. On the fake GPU, the test holds the
streams before the kill.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

import tensorflow as tf

import tfring
from tfring import elastic

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import bare_gpu

_STEPS, _LAST_OF_ALL = 6, 3


def total() -> tf.Tensor:
    """How many ranks there are, in many elements."""
    with tf.device("GPU:0"):
        return tfring.allreduce(tf.ones([100_000]), op=tfring.Sum)


def kill_soon() -> None:
    """Kills this process after it has enqueued its part, or while it waits."""
    if bare_gpu.is_fake():
        bare_gpu.hold_urgent_streams()
    kill = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    kill.start()
    total()
    kill.join()


@elastic.run
def train(state: elastic.TensorFlowState) -> None:
    """Adds up the totals of some steps, until a new worker has joined."""
    while state.step < _STEPS or tfring.size() < 3:
        worker = os.environ["TFRING_ELASTIC_WORKER"]
        if state.step == _LAST_OF_ALL and worker == "w2":
            kill_soon()
        state.variables[0].assign_add(total())
        state.ranks += tfring.size()
        state.step += 1
        state.commit()


def main() -> None:
    """Fails if a value is wrong, or if it takes too long."""
    if bare_gpu.is_fake():
        bare_gpu.load_fake_gpu()
    tfring.init()
    with tf.device("GPU:0"):
        variable = tf.Variable(tf.zeros([100_000]))
    state = elastic.TensorFlowState([variable], step=0, ranks=0)
    state.variables = [variable]
    faulthandler.dump_traceback_later(90, exit=True)
    train(state)
    faulthandler.cancel_dump_traceback_later()
    if set(variable.numpy()) != {state.ranks}:
        raise AssertionError(f"{set(variable.numpy())} is not {state.ranks}")
    if state.ranks == 3 * state.step:
        raise AssertionError("no rank was lost")
    slot = int(os.environ["TFRING_ELASTIC_SLOT"])
    slots = sorted(tfring.allgather(tf.constant([slot])).numpy())
    if slots != [0, 1, 2]:
        raise AssertionError(f"the ranks have the slots {slots}")
    print("the others have gone on")


if __name__ == "__main__":
    main()

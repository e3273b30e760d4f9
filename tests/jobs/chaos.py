"""A small training loop with a fault on one rank.

    chaos.py VICTIM STEP HARM

`test_chaos.py` starts it. It imports as little as possible.
"""

import os
import resource
import signal
import sys
from pathlib import Path

_BEFORE_INIT = ("exit_before_init", "bad_setting", "few_files")
_STEPS = 12


def _harm(harm):
    if harm == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif harm == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif harm == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif harm == "exception":
        raise LookupError("chaos")
    elif harm.startswith("exit_with_"):
        sys.exit(int(harm.removeprefix("exit_with_")))
    elif harm.startswith("end_with_"):
        os._exit(int(harm.removeprefix("end_with_")))
    elif harm == "exit_before_init":
        sys.exit(4)
    elif harm == "bad_setting":
        os.environ["TFRING_FUSION_THRESHOLD"] = "abc"
    elif harm == "few_files":
        used = len(list(Path("/proc/self/fd").iterdir()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, used + 8))


def main():
    victim, at_step, harm = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    import tensorflow as tf

    import tfring

    if rank == victim and harm in _BEFORE_INIT:
        _harm(harm)
    tfring.init()

    def train(state):
        while state.step < _STEPS:
            if rank == victim and state.step == at_step:
                _harm(harm)
            value = tfring.allreduce(
                tf.fill([1000], state.step + 1.0), op=tfring.Sum, name="chaos"
            )
            expected = tfring.size() * (state.step + 1.0)
            assert tf.reduce_all(value == expected), "wrong values"
            state.step += 1
            state.commit()

    state = tfring.elastic.ObjectState(tfring.broadcast_object, step=0)
    train(state)
    print(f"done on {tfring.size()}", flush=True)


main()

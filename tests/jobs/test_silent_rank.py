"""A rank stops in a transfer; the remaining ranks name it and the call."""

import re

import pytest

_SCRIPT = """
import os, signal, sys, threading, time
import tensorflow as tf
import tfring

victim, traced = int(sys.argv[1]), sys.argv[2] == "traced"
tfring.init()
kernel = tf.ones([32 << 20])

def train():
    return tfring.allreduce(kernel, name="kernel", op=tfring.Sum)

if traced:
    train = tf.function(train)
train()
begun = threading.Event()
if tfring.rank() == victim:
    def stop():
        begun.wait()
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Thread(target=stop).start()
try:
    while True:
        begun.set()
        train()
except Exception as error:
    print("got", str(error).replace("\\n", " "), flush=True)
    open(f"got.{tfring.rank()}", "w").close()
    others = {0, 1, 2} - {victim}
    while not all(os.path.exists(f"got.{rank}") for rank in others):
        time.sleep(0.01)
    sys.exit(3)
"""
_SILENCE = (
    r"allreduce of 'kernel' has waited \d+ s for rank {0}; nothing has been "
    r"heard from rank {0} for \d+ s: a process hangs or was stopped"
)


@pytest.mark.parametrize(
    ("shared_memory", "how", "victim"), [("1", "eager", 1), ("0", "traced", 0)]
)
def test_it_is_named_by_all(run_job, shared_memory, how, victim):
    output = run_job(
        3,
        f"import sys; sys.argv[1:] = ['{victim}', '{how}']\n" + _SCRIPT,
        env={
            "TFRING_SHARED_MEMORY": shared_memory,
            "TFRING_STALL_CHECK_TIME_SECONDS": "2",
            "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "6",
        },
        status=3,
    )
    silence = _SILENCE.format(victim)
    for rank in {0, 1, 2} - {victim}:
        for said in (f"tfring warning on rank {rank}: ", "got .*"):
            assert re.search(
                rf"^\[{rank}\] {said}{silence}", output, re.MULTILINE
            ), output
    blamed = re.findall(r"heard from (ranks? [^ ]*)", output)
    assert set(blamed) == {f"rank {victim}"}, output
    ends = re.findall(r"allreduce of [^\[\n]* go on without it", output)
    assert len(set(ends)) == 1, output

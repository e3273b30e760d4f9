"""How jobs are started, and whether one is still there."""

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path

from tfring import _build_info
from tfring.launcher import mpi_launchers

TFRINGRUN = [sys.executable, "-m", "tfring.run"]
# For jobs that lose many workers of one host.
FORGIVING_TFRINGRUN = [
    sys.executable,
    str(Path(__file__).parents[2] / "tools/forgiving_tfringrun.py"),
]
# A longer job is a hang, even on a busy machine.
JOB_SECONDS = 240

# A third of the start time of a rank is spent on optional imports of Keras. The
# folder `lean` hides scikit-learn and similar packages. Jobs that need these
# packages use the environment WHOLE, all other jobs LEAN.
WHOLE = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
LEAN = {
    "PYTHONPATH": os.pathsep.join(
        filter(None, [str(Path(__file__).with_name("lean")), *WHOLE.values()])
    )
}

# The rank, as any of the MPI launchers tells it.
RANK = """
import os, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
"""


# A callback of scripts, which prints steps, and gives time to end the job.
SLOW = """
import keras, time
import tfring

class Slow(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.01)
        if tfring.rank() == 0:
            print(f"step {self.epoch} {batch}", flush=True)
"""


def mpirun(ranks):
    """How a user starts a job without tfringrun."""
    launcher = mpi_launchers.find_launcher(
        _build_info.MPI_VERSION, _build_info.MPIRUN
    )
    line = [str(launcher.path), "-np", str(ranks)]
    if launcher.family is mpi_launchers.Family.OPEN_MPI:
        line += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            line += ["--allow-run-as-root"]
    return line


def in_place_of_ssh(path, script):
    """The environment of a job whose launcher runs this script of a shell."""
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    names = (
        *("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"),
        "HYDRA_LAUNCHER_EXEC",
    )
    return dict.fromkeys(names, str(path))


def finish(process, status=0):
    """Returns the remaining output of a job, which ends with this status."""
    output, _ = process.communicate(timeout=JOB_SECONDS)
    assert process.returncode == status, output
    return output


def read_until(process, pattern):
    """Returns a job's output up to the line with a pattern."""
    output = ""
    while not re.search(pattern, output):
        line = process.stdout.readline()
        assert line, output
        output += line
    return output


def printed(output, word="result"):
    """Returns what the ranks have printed as JSON after a word."""
    lines = re.findall(rf"^\[\w+\] {word} (.*)$", output, re.MULTILINE)
    return [json.loads(text) for text in lines]


def wait_until(condition):
    """Returns when the condition holds; longer than a job is a hang."""
    end = time.monotonic() + JOB_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def running(marker):
    """The processes that have `marker` in their environment."""
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            environment = (directory / "environ").read_bytes()
            state = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if marker.encode() in environment and state[0] != "Z":
            pids.append(int(directory.name))
    return pids


def listening(proc):
    """Yields (address, port, inode) of listeners in a process's network."""
    for line in (proc / "net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            address, _, port = fields[1].partition(":")
            octets = reversed(bytes.fromhex(address))
            yield ".".join(map(str, octets)), int(port, 16), int(fields[9])


def sockets_of(pids):
    """Returns the inodes of the sockets of these processes."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.is_socket():
                    inodes.add(descriptor.stat().st_ino)
    return inodes

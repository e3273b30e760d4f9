"""Jobs with a random fault on one rank.

After any fault, the job ends in time, no rank computes a wrong value, the
message names the rank, and nothing stays behind. To run it by hand for hours:

    TFRING_CHAOS_ROUNDS=1000 TFRING_CHAOS_SEED=7 pytest tests/jobs/test_chaos.py
"""

import contextlib
import os
import random
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from jobs import JOB_SECONDS, TFRINGRUN, running

_RANKS = 3
_SEED = int(os.environ.get("TFRING_CHAOS_SEED", "1"))
_ROUNDS = int(os.environ.get("TFRING_CHAOS_ROUNDS", "1"))
_SHARED_MEMORY = Path("/dev/shm")
_PROGRAM = Path(__file__).with_name("chaos.py")

# The harm, and the status; None is any but 0, and "any" may also be 0.
_KINDS = [
    ("none", 0),
    ("kill", 137),
    ("crash", 139),
    ("stop", None),
    ("exception", 1),
    ("exit_with_3", 3),
    ("exit_with_-1", 255),
    ("end_with_7", 7),
    ("exit_before_init", 4),
    ("bad_setting", 1),
    ("few_files", "any"),
    ("full_tmp", "any"),
    ("full_shm", "any"),
]
# Cases that a default run leaves out, for time; it has similar ones.
_SELDOM = {
    *("crash", "exit_with_-1", "few_files", "full_tmp", "none"),
    "exit_before_init",
}


def _with_mounts(harm, folder, shared):
    """Returns the start of a command line with its own shared memory.

    The memory is `shared`, so that the test sees files that stay behind. With
    `full_shm` or `full_tmp`, the memory or the folder is full instead.
    """
    small = "mount -t tmpfs -o size=64k tmpfs"
    mounts = {
        "full_shm": f"{small} {_SHARED_MEMORY}",
        "full_tmp": f"{small} {folder}",
    }
    default = f"mount --bind {shared} {_SHARED_MEMORY}"
    return [
        *("unshare", "-m", "sh", "-c"),
        f'{mounts.get(harm, default)} && exec "$@"',
        "sh",
    ]


def _cases():
    for number in range(_ROUNDS):
        for harm, status in _KINDS:
            if _ROUNDS == 1 and harm in _SELDOM:
                continue
            yield pytest.param(harm, status, number, id=f"{harm}-{number}")


@pytest.mark.parametrize(("harm", "status", "number"), list(_cases()))
def test_one_rank_comes_to_harm(start, tmp_path, marker, harm, status, number):
    dice = random.Random(f"{_SEED} {harm} {number}")
    victim, step = dice.randrange(_RANKS), dice.randrange(10)
    # The program's folder, so short that Open MPI's socket has a short path.
    folder = Path("/tmp", f"chaos{uuid.uuid4().hex[:8]}")
    folder.mkdir()
    command = [
        *(*TFRINGRUN, "-np", _RANKS),
        *(sys.executable, _PROGRAM, victim, step, harm),
    ]
    full = harm in ("full_tmp", "full_shm")
    shared = _SHARED_MEMORY / folder.name
    shared.mkdir()
    mounts = _with_mounts(harm, folder, shared)
    if subprocess.run([*mounts, "true"]).returncode == 0:
        command = [*mounts, *command]
    elif full:
        pytest.skip("needs unshare -m")
    job = start(
        command,
        env={
            "TMPDIR": str(folder),
            "TFRING_STALL_CHECK_TIME_SECONDS": "2",
            "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "6",
            "TFRING_INIT_TIMEOUT_SECONDS": "60",
        },
    )
    try:
        output, _ = job.communicate(timeout=JOB_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.fail(f"victim {victim}, step {step}: runs for {JOB_SECONDS} s")
    said = f"victim {victim}, step {step}, status {job.returncode}:\n{output}"

    assert "wrong values" not in output, said
    if status is None:
        assert job.returncode != 0, said
    elif status != "any":
        assert job.returncode == status, said
    if job.returncode == 0:
        assert output.count(f"done on {_RANKS}") == _RANKS, said
    elif harm == "stop":
        assert f"for rank {victim}" in output, said
    elif harm == "bad_setting":
        assert f"failed on rank {victim}: TFRING_FUSION" in output, said
    elif not full:
        assert re.search(
            rf"^tfringrun: rank {victim} \(host \S+\) failed first",
            output,
            re.MULTILINE,
        ), said

    deadline = time.monotonic() + 60
    while running(marker):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    assert not [p for p in folder.rglob("*") if not p.is_dir()], said
    while left := list(shared.iterdir()):
        assert time.monotonic() < deadline, (left, said)
        time.sleep(0.1)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
    shared.rmdir()

"""Jobs on Spark and Ray themselves, in an environment of their own."""

import os
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 120.0
MARKER = f"TFRING_TEST_ENGINES={os.getpid()}"

# Executors and raylets have this environment, too.
os.environ.update(
    PYSPARK_PYTHON=sys.executable,
    PYSPARK_DRIVER_PYTHON=sys.executable,
    PYTHONPATH=os.pathsep.join(
        [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    ),
    RAY_DEDUP_LOGS="0",
    SPARK_LOCAL_IP="127.0.0.1",
    TF_CPP_MIN_LOG_LEVEL="2",
    TF_NUM_INTRAOP_THREADS="1",
    **dict([MARKER.split("=")]),
)


def wait_for(condition, seconds=SECONDS):
    """Waits until the condition is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)
    return found


def processes_of_tfring():
    """Returns the processes of launchers, of parts, and of ranks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        # Ray names the process of an actor by its class.
        is_ours = any(
            word.startswith((b"tfring.launcher.", b"ray::Worker"))
            for word in words
        )
        if is_ours and MARKER.encode() in environment:
            found.append(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    wait_for(lambda: not processes_of_tfring(), 20.0)


@pytest.fixture
def pids(tmp_path):
    """Returns a function that waits for ranks, and gives their processes."""

    def of_ranks(count):
        wait_for(lambda: len([*tmp_path.glob("rank*")]) >= count)
        return {
            int(path.name.removeprefix("rank")): int(path.read_text())
            for path in tmp_path.glob("rank*")
        }

    return of_ranks


@pytest.fixture
def horovods_name(monkeypatch):
    """Makes `import horovod` find tfring, as `tfringrun --horovod` does."""
    from tfring import horovod

    monkeypatch.syspath_prepend(horovod.FOLDER)
    yield
    for name in [name for name in sys.modules if name.startswith("horovod")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def alone():
    """The weights of a training in one process."""
    import json
    import subprocess

    script = "import json, functions; print(json.dumps(functions.train()[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])

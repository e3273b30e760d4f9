"""`tfring.run` starts functions on ranks, from programs and notebooks."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import JOB_SECONDS, in_place_of_ssh, running, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"

# A function's module must be one that the ranks find, or be `__main__`.
PROGRAM = """
import os, sys, threading, time, traceback
import tfring

def rank():
    return int(os.environ["TFRING_ELASTIC_WORKER"][1:]) - 1
"""
SLEEP = """
import tfring

def sleep():
    import time
    print("asleep", flush=True)
    time.sleep(1000)

tfring.run(sleep)
"""


def test_results_errors_and_output(run, write_script, tmp_path):
    """One program, since a job is under way in a second."""
    script = write_script(
        PROGRAM
        + """
def work(factor, offset=0):
    print("of rank", rank())
    print("bar 1/2", end="\\r")
    print("bar 2/2")
    print("stderr of rank", rank(), file=sys.stderr)
    return rank() * factor + offset

print("results", tfring.run(work, (10,), {"offset": 1}, np=3))
found = tfring.run(
    lambda: rank(), hosts="localhost:2", np=None, verbose=True
)
print("lambda", found)

class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(one)

def fail(how):
    if rank() == 1:
        how()
    if how is not end_early:
        time.sleep(1000)

def end_early():
    os._exit(0)

def raise_it():
    raise LookupError("boom", 7)

def raise_odd():
    raise OddError("odd", 2)

def report(how):
    try:
        tfring.run(fail, (how,))
    except Exception as error:
        print("raised", repr(error))
        text = traceback.format_exc()
        print("whole", "in raise_" in text, "Rank 1:" in text)

report(raise_it)
report(raise_odd)
report(lambda: os.kill(os.getpid(), 9))
report(lambda: sys.exit("no good"))
report(end_early)

for call in (
    lambda: tfring.run(3),
    lambda: tfring.run(work, np=0),
    lambda: tfring.run(work, hosts="a:b"),
    lambda: tfring.run(work, (threading.Lock(),)),
):
    try:
        call()
    except (TypeError, ValueError) as error:
        print("refused", type(error).__name__, error)

import tfring.run  # also where it is imported as `python -m` has it
assert tfring.run is not sys.modules["tfring"].launcher
print("still", tfring.run(rank, np=1))
"""
    )
    output = run([sys.executable, script], env={"TMPDIR": str(tmp_path)})
    lines = output.splitlines()
    assert "results [1, 11, 21]" in lines
    assert "lambda [0, 1]" in lines
    assert output.count("s until the last rank was started\n") == 1
    # Rank 0's output, and no other's.
    assert "of rank 0" in lines
    assert "stderr of rank 0" in lines
    assert "bar 2/2" in lines
    assert "of rank 1" not in output
    assert "\r" not in output
    raised = re.findall(r"raised (.*)\nwhole (\w+) (\w+)", output)
    assert raised[0] == ("LookupError('boom', 7)", "True", "True")
    assert raised[1] == (
        "RuntimeError('tfring.run: rank 1 failed: OddError: odd')",
        "True",
        "True",
    )
    said = [error for error, _, _ in raised]
    assert re.search(r"rank 1 \(host .*\) failed first: killed by SIG", said[2])
    assert "exit status 1; its last line: no good" in said[3]
    assert "rank 1 ended before fn returned" in said[4]
    refused = re.findall(r"refused (\w+) (.*)", output)
    assert refused[0] == (
        "TypeError",
        "tfring.run: fn must be a function, got int.",
    )
    assert refused[1][1] == "tfring.run: np must be at least 1, got 0."
    assert "expected host:slots" in refused[2][1]
    assert refused[3][0] == "TypeError"
    assert "cannot be sent to other processes" in refused[3][1]
    assert "still [0]" in lines
    assert not list(tmp_path.glob(".tfring-run-*"))


def test_without_cloudpickle(run, write_script, tmp_path):
    (tmp_path / "cloudpickle.py").write_text("raise ImportError")
    (tmp_path / "work.py").write_text(
        "import os\n"
        "def pid():\n"
        "    import sys\n"
        "    return os.getpid(), sys.path[0]\n"
    )
    script = write_script(
        """
import work
import tfring

def here():
    return 1

try:
    tfring.run(here)
except TypeError as error:
    print(error)
print(len({pid for pid, _ in tfring.run(work.pid)}), "processes")
"""
    )
    output = run([sys.executable, script])
    assert "Install cloudpickle, or define it in a module" in output
    assert "2 processes" in output


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_a_program_that_ends_takes_its_job_along(
    start, write_script, tmp_path, marker, how
):
    job = start(
        [sys.executable, write_script(SLEEP)], env={"TMPDIR": str(tmp_path)}
    )
    assert job.stdout.readline() == "asleep\n"
    assert len(running(marker)) >= 4
    [folder] = tmp_path.glob(".tfring-run-*")
    # No other user may read these files, or add files there.
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "call").stat().st_mode & 0o777 == 0o600
    job.send_signal(signal.Signals[how])
    output, _ = job.communicate(timeout=JOB_SECONDS)
    if how == "SIGINT":
        assert job.returncode == -signal.SIGINT
        assert output.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not running(marker) and not folder.exists())


def test_not_from_a_rank(run_job):
    output = run_job(
        2,
        """
import tfring
try:
    tfring.run(print)
except RuntimeError as error:
    print(error)
""",
    )
    assert output.count("this process is a rank of one") == 2


def test_the_notebook(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    check_outputs(notebook)  # those that the site shows
    nbclient.NotebookClient(
        notebook,
        timeout=JOB_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    check_outputs(notebook)


def check_outputs(notebook):
    texts = [
        "".join(
            output.get("text", "")
            for output in cell.outputs
            if output.output_type == "stream"
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    _, _, training, comparison, failure = texts
    assert training.count("Epoch 4/4") == 1
    accuracy = re.search(r"accuracy (0\.\d+)$", comparison, re.MULTILINE)
    assert float(accuracy[1]) > 0.8
    assert "weights identical on all ranks: True" in comparison
    assert "rank 1 raised: no data on this rank" in failure


def test_a_notebooks_stop_button(tmp_path, marker):
    manager = pytest.importorskip("jupyter_client").manager
    kernel, client = manager.start_new_kernel(
        env={**os.environ, **dict([marker.split("=")])},
        cwd=str(tmp_path),
        stdout=subprocess.DEVNULL,
    )
    try:
        message = client.execute(SLEEP)
        text = ""
        while "asleep" not in text:
            found = client.get_iopub_msg(timeout=JOB_SECONDS)["content"]
            text += found.get("text", "")
        assert len(running(marker)) >= 5
        kernel.interrupt_kernel()
        reply = client.get_shell_msg(timeout=JOB_SECONDS)
        while reply["parent_header"].get("msg_id") != message:
            reply = client.get_shell_msg(timeout=JOB_SECONDS)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        # The kernel lives on.
        assert len(running(marker)) == 1
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


# In place of ssh: node2 is this machine, and node3 lets nobody in.
AGENT = """
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
if [ $host = node3 ]; then
  echo "node3: Permission denied (publickey)." >&2
  exit 255
fi
echo "Warning: Permanently added $host." >&2
exec env -i PATH="$PATH" TMPDIR="$TMPDIR" MACHINE=$host sh -c "$*"
"""


def test_other_machines(run, write_script, tmp_path):
    script = write_script(
        PROGRAM
        + """
def work(fails=False):
    if fails and rank() == 0:
        raise LookupError("boom")
    return rank(), os.environ.get("MACHINE"), os.environ["ASKED"]

def report(*arguments, **options):
    try:
        print(tfring.run(work, *arguments, **options))
    except Exception as error:
        print(repr(error))

report(hosts="node2:2,localhost:4", np=3)
report((True,), hosts="node2:1,localhost:1", np=None)
os.environ["PBS_NODEFILE"] = "nodes"
report(np=2)
report(np=None)
report(np=4)
"""
    )
    (tmp_path / "nodes").write_text("node2\nnode2\nnode3\n")
    output = run(
        [sys.executable, script],
        env={
            **in_place_of_ssh(tmp_path / "agent", AGENT),
            "ASKED": "yes",
            "TFRING_ELASTIC_INTERFACE": "127.0.0.1",
            "TMPDIR": str(tmp_path),
        },
    )
    assert output.splitlines() == [
        # The ranks have the order of the hosts. The part here comes first.
        "[(0, 'node2', 'yes'), (1, 'node2', 'yes'), (2, None, 'yes')]",
        "LookupError('boom')",
        "[(0, 'node2', 'yes'), (1, 'node2', 'yes')]",
        "RuntimeError('tfring.run: host node3 cannot be reached: node3: "
        "Permission denied (publickey).')",
        "ValueError('tfring.run: np=4, and the machines have 3 slots in all. "
        "Ask for fewer ranks, or pass hosts= with more slots.')",
    ]
    assert not list(tmp_path.glob(".tfring-run-*"))

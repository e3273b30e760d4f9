"""`tfringrun` starts real jobs.

Their ranks import neither TensorFlow nor MPI, except in tests of those.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import (
    JOB_SECONDS,
    RANK,
    TFRINGRUN,
    in_place_of_ssh,
    running,
    wait_until,
)

from tfring import horovod
from tfring._core import abi


def test_output_and_arguments(run, write_script):
    script = write_script(
        RANK
        + """
print("arguments", sys.argv[1:], "home is", os.environ["MY_HOME"])
print("to stderr", file=sys.stderr)
print(len(os.sched_getaffinity(0)), "cores")
from importlib.metadata import version
print("horovod", version("horovod"))
"""
    )
    output = run(
        [
            *TFRINGRUN,
            *("-H", "localhost:2", "--verbose", "--horovod"),
            *(sys.executable, script, "-np", "a b", "--", "--verbose"),
        ],
        env={"MY_HOME": "x;y, z"},
    )
    lines = output.splitlines()
    for rank in (0, 1):
        assert (
            f"[{rank}] arguments ['-np', 'a b', '--', '--verbose'] "
            "home is x;y, z"
        ) in lines
        assert f"[{rank}] to stderr" in lines
        assert f"[{rank}] horovod {horovod.VERSION}" in lines
        cores = re.search(rf"^\[{rank}\] (\d+) cores", output, re.MULTILINE)
        assert int(cores[1]) <= max(1, len(os.sched_getaffinity(0)) // 2)
    assert any("2 ranks on localhost:2" in line for line in lines)


@pytest.mark.parametrize("options", [["-np", "1"], ["--elastic", "-np", "1"]])
def test_variables_whose_names_no_shell_can_have(run, write_script, options):
    variables = {"BASH_FUNC_module%%": "() {  eval `x $*`\n}", "a.b": "1"}
    script = write_script(
        "import os, sys\n"
        f"print([os.environ.get(name) for name in {list(variables)}])\n"
        "sys.exit(7)"
    )
    command = [*TFRINGRUN, *options, sys.executable, script]
    output = run(command, env=variables, status=7)
    assert f"] {list(variables.values())}\n" in output


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("raise ValueError('boom')", 1),
        ("os.kill(os.getpid(), 9)", 137),
        ("os.kill(os.getpid(), 11)", 139),
    ],
)
def test_exit_status(run_job, end, status):
    script = f"if rank == 1: {end}\ntime.sleep(1000)\nprint('lived on')"
    output = run_job(2, RANK + script, status=status)
    assert "lived on" not in output
    if status == 1:
        assert "[1] ValueError: boom" in output.splitlines()


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_signal_leaves_no_process(start, write_script, marker, how):
    # One of the two ranks ignores signals and has a child; a launcher that is
    # killed cannot kill ranks that ignore signals.
    stubborn = "rank == 1" if how != "SIGKILL" else "False"
    script = write_script(
        RANK
        + f"""
import signal, subprocess
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""
    )
    process = start(
        [*TFRINGRUN, "--grace", "0", "-np", "2", sys.executable, script]
    )
    ready = {process.stdout.readline() for _ in range(2)}
    assert ready == {"[0] ready\n", "[1] ready\n"}
    assert len(running(marker)) >= 4
    number = signal.Signals[how]
    process.send_signal(number)
    process.communicate(timeout=JOB_SECONDS)
    if how == "SIGKILL":
        assert process.returncode == -number
        # The kernel tells them; nobody waits for their ends.
        wait_until(lambda: not running(marker))
    else:
        assert process.returncode == 128 + number
        assert running(marker) == []


SAVES = """
import os, signal, sys, time
names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "TFRING_ELASTIC_SLOT")
rank = int(next(filter(None, map(os.environ.get, names))))
def save(number, frame):
    print("saves", number, flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    print("saved", flush=True)
    sys.exit(0)
if rank == 0:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, save)
print("ready", rank, os.getpid(), flush=True)
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("SIGTERM", ["-np", "2"]),
        ("SIGINT", ["-np", "2"]),
        ("SIGTERM", ["-H", "node1:1,node2:1"]),
        ("SIGTERM", ["--elastic", "-np", "2"]),
        ("SIGINT", ["--elastic", "-np", "2"]),
    ],
)
def test_a_rank_saves_after_a_signal(
    start, write_script, tmp_path, marker, how, options
):
    """The end of the other rank, which has no handler, does not end it."""
    job, other = _start_two(start, write_script(SAVES), tmp_path, options)
    number = signal.Signals[how].value
    job.send_signal(number)
    _read_until(job, f"saves {number}")
    wait_until(lambda: other not in running(marker))
    (tmp_path / "go").touch()
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert "] saved\n" in output
    assert job.returncode == 128 + number
    assert running(marker) == []


@pytest.mark.parametrize(
    ("options", "status"),
    [(["-np", "2"], 0), (["--elastic", "-np", "2"], 143)],
)
def test_all_ranks_get_sigusr2_and_end_with_their_own_status(
    start, write_script, tmp_path, options, status
):
    script = write_script(SAVES.replace("if rank == 0:", "if True:"))
    job, _ = _start_two(start, script, tmp_path, options)
    for number in (signal.SIGUSR2, signal.SIGTERM):
        job.send_signal(number)
        for _ in range(2):
            _read_until(job, f"saves {number.value}")
    (tmp_path / "go").touch()
    job.communicate(timeout=JOB_SECONDS)
    assert job.returncode == status


@pytest.mark.thorough
def test_an_interrupted_rank_leaves_the_others_time(
    start, write_script, tmp_path, marker
):
    """By tfring an exception ends the job, but not that of Ctrl-C."""
    text = SAVES.replace(
        'print("ready"', 'import tfring\ntfring.init()\nprint("ready"'
    )
    # MPI_Finalize would wait for the rank that is gone.
    script = write_script(text.replace("sys.exit(0)", "os._exit(0)"))
    job, other = _start_two(start, script, tmp_path, ["-np", "2"])
    job.send_signal(signal.SIGINT)
    _read_until(job, f"saves {signal.SIGINT.value}")
    wait_until(lambda: other not in running(marker))
    (tmp_path / "go").touch()
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert "[1] KeyboardInterrupt\n" in output
    assert "[0] saved\n" in output
    assert job.returncode == 130


def _start_two(start, script, tmp_path, options):
    """Starts two ranks; returns the job, and rank 1's process, once ready."""
    ssh = in_place_of_ssh(
        tmp_path / "ssh",
        'while case "$1" in -*) true ;; *) false ;; esac; do shift; done\n'
        'shift; exec sh -c "$*"\n',
    )
    job = start([*TFRINGRUN, *options, sys.executable, script], env=ssh)
    ready = [_read_until(job, r"ready (\d) (\d+)").groups() for _ in range(2)]
    return job, int(dict(ready)["1"])


def _read_until(job, pattern):
    while line := job.stdout.readline():
        if found := re.fullmatch(rf"\[\w+\] {pattern}\n", line):
            return found
    raise AssertionError(f"no line {pattern!r}")


def test_stdin_is_empty(start, write_script):
    script = write_script(RANK + "print(repr(sys.stdin.read()))")
    process = start(
        [*TFRINGRUN, "-np", "2", sys.executable, script],
        stdin=subprocess.PIPE,
    )
    output, _ = process.communicate("some text", timeout=JOB_SECONDS)
    assert set(output.splitlines()) == {"[0] ''", "[1] ''"}


def test_a_closed_pipe_ends_the_job(start, write_script):
    script = write_script(RANK + "while True: print('y', flush=True)")
    process = start([*TFRINGRUN, "-np", "2", sys.executable, script])
    assert process.stdout.readline()[3:] == " y\n"
    process.stdout.close()
    assert process.wait(timeout=JOB_SECONDS) == 128 + signal.SIGPIPE


def _new_hostname():
    """A command that runs another under a hostname of its own, or None."""
    for options in (["-u"], ["-ru"]):
        line = ["unshare", *options, "hostname", "node1"]
        if (
            shutil.which("unshare")
            and subprocess.run(line, capture_output=True).returncode == 0
        ):
            return " ".join(line[:2])
    return None


@pytest.mark.skipif(_new_hostname() is None, reason="needs unshare -u")
def test_several_hosts(run, write_script, tmp_path):
    # A new hostname and an empty environment on this machine.
    ssh = in_place_of_ssh(
        tmp_path / "ssh",
        'while case "$1" in -*) true ;; *) false ;; esac; do shift; done\n'
        "host=$1\n"
        "shift\n"
        f'exec env -i HOME="$HOME" PATH=/usr/bin:/bin {_new_hostname()} '
        """sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"\n""",
    )
    script = write_script(
        """
        import os
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        total = world.allreduce(world.rank)
        print(os.uname().nodename, os.environ["MY_DATA"], total)
        assert "hugetlb" in os.environ["GLIBC_TUNABLES"]
        """
    )
    hostfile = tmp_path / "hosts"
    hostfile.write_text("node1 slots=1\nnode2 slots=2\n")
    output = run(
        [*TFRINGRUN, "--hostfile", hostfile, sys.executable, script],
        env={"MY_DATA": 'a b;"c",d', **ssh},
    )
    lines = output.splitlines()
    assert {line for line in lines if re.match(r"\[\d\] ", line)} == {
        '[0] node1 a b;"c",d 3',
        '[1] node2 a b;"c",d 3',
        '[2] node2 a b;"c",d 3',
    }


def facts_of(output):
    """The facts that --check-build prints, by subject."""
    return dict(
        re.split(r"\s{2,}", line.strip(), maxsplit=1)
        for line in output.splitlines()[1:]
    )


def test_check_build(run):
    output = run([*TFRINGRUN, "--horovod", "--check-build"])
    output, _, as_horovod = output.partition("\n\n")
    assert re.match(r"Horovod v\d+", as_horovod)
    assert "[X] TensorFlow" in as_horovod
    assert "[ ] PyTorch" in as_horovod
    facts = facts_of(output)
    assert re.match(r"\d+\.\d+\.\d+ \(built with \d", facts["TensorFlow"])
    assert re.match(r"3\.\d+.*, backend tensorflow", facts["Keras"])
    assert "MPI_THREAD_MULTIPLE" in facts["MPI"]
    assert "mpirun" in facts["mpirun"]
    assert facts["XLA"].startswith("yes")
    assert re.match("for CUDA|no driver of an NVIDIA GPU", facts["GPU driver"])
    assert facts["CUDA MPI"].startswith(("yes", "no"))
    assert re.match(r"no NCCL: libnccl.so.2|\d+\.\d+\.\d+, /", facts["NCCL"])


def test_check_build_with_a_gpu(run):
    fakes = Path(__file__).parents[2] / "build/native/plain/tests/gpu/fake"
    libraries = [fakes / "cuda", fakes / "nccl"]
    if not all(path.is_dir() for path in libraries):
        pytest.skip("`make fake-gpu` has not built the fake driver")
    output = run(
        [*TFRINGRUN, "--check-build"],
        env={"LD_LIBRARY_PATH": ":".join(map(str, libraries))},
    )
    facts = facts_of(output)
    assert facts["GPU driver"] == "for CUDA 12.1"
    assert facts["GPU 0"] == "fake GPU, 1 GiB"
    assert facts["CUDA IPC"] == "yes, on GPU 0"
    assert facts["NCCL"].startswith(f"2.21.5, {libraries[1]}/libnccl.so.2")


def test_check_build_without_an_mpi(run, tmp_path):
    library = abi.mpi_library().name
    (tmp_path / library).write_text("This is no library.")
    output = run(
        [*TFRINGRUN, "--check-build"],
        status=1,
        env={"LD_LIBRARY_PATH": str(tmp_path)},
    )
    [mpi] = [line for line in output.splitlines() if line.startswith("  MPI")]
    assert f"{tmp_path / library}, of " in mpi
    assert "cannot be loaded: " in mpi
    assert "Traceback" not in output


def test_self_test(run):
    output = run([*TFRINGRUN, "-np", "2", "--self-test"])
    lines = [line for line in output.splitlines() if line.startswith("[0]   ")]
    checks = [line for line in lines if line.endswith(" ok")]
    assert len(checks) == 10, output
    assert re.search(r"allreduce of 4 bytes +\d+ us", output)
    assert re.search(r"allreduce of 64 MiB +\d+ ms, \d+\.\d+ GB/s", output)
    assert re.search(r"ranks 0 and 1 +\d+ us, \d+\.\d+ GB/s", output)

"""How `tfringrun` shows a job and its end to a person."""

import fcntl
import os
import re
import shlex
import signal
import sys
import termios

import pytest
from jobs import JOB_SECONDS, RANK, TFRINGRUN, in_place_of_ssh, wait_until

SCRIPT = (
    RANK
    + """
def wait_until(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)
"""
)
# Open MPI's and MPICH's.
BOILERPLATE = re.compile(r"-{20}|={20}|prterun|mpirun|mpiexec|MPI_ABORT")


@pytest.mark.parametrize("verbose", [False, True])
def test_the_traceback_of_the_first_rank(run_job, verbose):
    # All at once, line by line; but one rank alone ends, when all have said it.
    output = run_job(
        3,
        SCRIPT
        + """
import traceback
def inner():
    raise RuntimeError(f"boom on rank {rank}\\nand more of it")
try:
    inner()
except RuntimeError:
    for number, line in enumerate(traceback.format_exc().splitlines()):
        print(line, file=sys.stderr, flush=True)
        open(f"{number}.{rank}", "w").close()
        wait_until(*(f"{number}.{each}" for each in range(3)))
    if rank != 1:
        time.sleep(1000)
    sys.exit(1)
""",
        options=["--verbose"] * verbose,
        status=1,
    )
    lines = output.splitlines()
    assert re.fullmatch(
        r"tfringrun: rank 1 \(host \S+\) failed first: "
        "RuntimeError: boom on rank 1",
        lines.pop(),
    ), output
    assert bool(BOILERPLATE.search("\n".join(lines[3:]))) == verbose, output
    if verbose:
        return
    # Each traceback is whole, and the traceback of the first rank to fail is at
    # the end.
    ranks = [line[:3] for line in lines]
    assert len(ranks) == 3 * 7
    assert ranks == sorted(ranks, key=ranks.index)
    assert lines[-1] == "[1] and more of it"


BAR = (
    SCRIPT
    + """
if rank == 0:
    for i in range(3):
        sys.stdout.write(f"\\r{i + 1}/3 " + "=" * i)
        sys.stdout.flush()
        if len(sys.argv) > 1:
            wait_until(f"{i + 1} was seen")
    print()
"""
)


def test_a_progress_bar_moves_on_a_terminal(start, write_script, tmp_path):
    job = start(
        [
            *(sys.executable, write_script(IN_TERMINAL)),
            *(*TFRINGRUN, "-np", "2", sys.executable, write_script(BAR)),
            "waits until it is seen",
        ]
    )
    seen = ""
    # The updates arrive one by one, and not all at the end of the line.
    for i in (1, 2, 3):
        while f"{i}/3" not in seen:
            data = os.read(job.stdout.fileno(), 1000).decode()
            assert data, seen
            seen += data
        (tmp_path / f"{i} was seen").touch()
    assert re.search(r"\[0\] 1/3 .*\r\[0\] 2/3 =.*\r\[0\] 3/3 ==", seen)


IN_TERMINAL = """
import os, pty, sys
status = pty.spawn(sys.argv[1:], lambda fd: os.read(fd, 1024))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_progress_bar_in_a_file_is_a_line(run_job):
    assert run_job(2, BAR) == "[0] 3/3 ==\n"


def test_a_host_that_cannot_be_reached(run, tmp_path):
    script = (
        "echo 'ssh: connect to host node2 port 22: Connection refused' >&2\n"
        "exit 255\n"
    )
    output = run(
        [*TFRINGRUN, "-H", "node2:1", "true"],
        status=None,
        env=in_place_of_ssh(tmp_path / "ssh", script),
    )
    assert re.fullmatch(
        "tfringrun: (host node2|a host) cannot be reached: ssh: connect to "
        "host node2 port 22: Connection refused. It needs ssh .*\n",
        output,
    ), output


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (
            "> /dev/full",
            1,
            "standard output cannot be written, .* No space left",
        ),
        (">&- <&-", 0, ""),
    ],
)
def test_an_output_that_takes_nothing(run, output, status, said):
    line = shlex.join([*TFRINGRUN, "-np", "2", "echo", "words"])
    shown = run(["sh", "-c", f"exec {line} {output}"], status=status)
    assert re.fullmatch(f"(tfringrun: {said}.*\n)?", shown)
    assert bool(shown) == bool(said)


def test_ctrl_c_while_nobody_reads(start, write_script):
    # A pager reads one page, too, and then nothing more.
    script = write_script("while True: print('x' * 1000)")
    job = start([*TFRINGRUN, "-np", "1", sys.executable, script])
    # The pipe holds 65,536.
    wait_until(lambda: unread_bytes(job.stdout) >= 60_000)
    job.send_signal(signal.SIGINT)
    assert job.wait(JOB_SECONDS) == 128 + signal.SIGINT


def unread_bytes(pipe):
    count = fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)

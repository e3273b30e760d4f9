"""How `tfringrun` shows a job and its end to a person."""

import os
import re
import socket
import stat
import sys
import time
from pathlib import Path

import pytest
from jobs import JOB_SECONDS, TFRINGRUN, running

from tfring.launcher import loopback

# The rank, as any of the MPI launchers tells it.
RANK = """
import os, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
"""
# Open MPI's and MPICH's.
BOILERPLATE = re.compile(r"-{20}|={20}|prterun|mpirun|mpiexec|MPI_ABORT")


@pytest.mark.parametrize("verbose", [False, True])
def test_the_traceback_of_the_first_rank(run_job, verbose):
    # All at once, line by line; but one rank alone ends.
    job = run_job(
        3,
        RANK
        + """
import traceback
def inner():
    raise RuntimeError(f"boom on rank {rank}\\nand more of it")
try:
    inner()
except RuntimeError:
    for line in traceback.format_exc().splitlines():
        print(line, file=sys.stderr, flush=True)
        time.sleep(0.1)
    if rank != 1:
        time.sleep(50)
    sys.exit(1)
""",
        options=["--verbose"] * verbose,
    )
    assert job.returncode == 1, job.stdout
    lines = job.stdout.splitlines()
    assert re.fullmatch(
        r"tfringrun: rank 1 \(host \S+\) failed first: "
        "RuntimeError: boom on rank 1",
        lines.pop(),
    ), job.stdout
    assert bool(BOILERPLATE.search("\n".join(lines[3:]))) == verbose, job.stdout
    if verbose:  # With the shell's words about the others' end.
        return
    # Each whole, and that of the first rank next to the last line.
    ranks = [line[:3] for line in lines]
    assert len(ranks) == 3 * 7
    assert ranks == sorted(ranks, key=ranks.index)
    assert lines[-1] == "[1] and more of it"


BAR = (
    RANK
    + """
if rank == 0:
    for i in range(3):
        sys.stdout.write(f"\\r{i + 1}/3 " + "=" * i)
        sys.stdout.flush()
        time.sleep(1)
    print()
"""
)


def test_a_progress_bar_moves_on_a_terminal(start, write_script):
    job = start(
        [
            sys.executable,
            write_script(IN_TERMINAL),
            *TFRINGRUN,
            "-np",
            "2",
            sys.executable,
            write_script(BAR),
        ]
    )
    seen = ""
    begin = None
    while "3/3" not in seen:
        data = os.read(job.stdout.fileno(), 1000).decode()
        assert data, seen
        seen += data
        if begin is None and "1/3" in seen:
            begin = time.monotonic()
    # They came one by one, and not all at the end of the line.
    assert time.monotonic() - begin > 1
    assert re.search(r"\r\[0\] 1/3 .*\r\[0\] 2/3 =.*\r\[0\] 3/3 ==", seen)


IN_TERMINAL = """
import os, pty, sys
status = pty.spawn(sys.argv[1:], lambda fd: os.read(fd, 1024))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_progress_bar_in_a_file_is_a_line(run_job):
    job = run_job(2, BAR)
    assert job.returncode == 0
    assert job.stdout == "[0] 3/3 ==\n"


def test_a_host_that_cannot_be_reached(start, tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        "echo 'ssh: connect to host node2 port 22: Connection refused' >&2\n"
        "exit 255\n"
    )
    ssh.chmod(0o755)
    job = start(
        [*TFRINGRUN, "-H", "node2:1", "true"],
        env={
            "PRTE_MCA_plm_ssh_agent": str(ssh),
            "OMPI_MCA_plm_rsh_agent": str(ssh),
            "HYDRA_LAUNCHER_EXEC": str(ssh),
        },
    )
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert job.returncode != 0
    assert re.fullmatch(
        "tfringrun: (host node2|a host) cannot be reached: ssh: connect to "
        "host node2 port 22: Connection refused.\n",
        output,
    ), output


def test_the_launcher_of_one_machine_listens_to_it_alone(start):
    command = "print('up', flush=True); import time; time.sleep(30)"
    job = start([*TFRINGRUN, "-np", "2", sys.executable, "-c", command])
    assert job.stdout.readline().endswith("up\n")
    [launcher] = _children(job.pid)
    deadline = time.monotonic() + 5
    while (bound := _interfaces(launcher)) != {b"lo\0"}:
        assert time.monotonic() < deadline, bound
        time.sleep(0.05)


def _interfaces(launcher):
    """The interfaces that its sockets for all addresses are bound to."""
    bound = set()
    try:
        process = loopback._call(loopback._PIDFD_OPEN, launcher, 0)
        for path in loopback._sockets(launcher):
            copy = loopback._call(
                loopback._PIDFD_GETFD, process, int(path.name), 0
            )
            with socket.socket(fileno=copy) as found:
                if loopback._listens_to_all(found):
                    bound.add(
                        found.getsockopt(
                            socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16
                        )
                    )
    except (PermissionError, NotImplementedError) as error:
        pytest.skip(f"this system keeps the launcher's sockets to it: {error}")
    os.close(process)
    return bound


def _children(pid):
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def test_an_elastic_job_that_does_not_end(start, tmp_path):
    """Ranks may sleep in MPI_Finalize for ever once one is lost."""
    mpirun = tmp_path / "prterun"
    report = r"printf '[1,%d]<stderr>: \036ending\037\n' {} >&2"
    mpirun.write_text(
        "#!/bin/sh\n"
        f"{report.format(0)}\n"
        f"{report.format(1)}\n"
        "trap : TERM\n"
        "sleep 100 & wait\n"
        "sleep 100\n"
    )
    mpirun.chmod(mpirun.stat().st_mode | stat.S_IXUSR)
    program = f"""
import sys
from tfring.launcher import cli, job, mpi_launchers, prepare
job.END_GRACE_SECONDS = 1.0
job.STOP_GRACE_SECONDS = 1.0
prepare.find_launcher = lambda: mpi_launchers.MpiLauncher(
    {str(mpirun)!r}, mpi_launchers.Family.OPEN_MPI, "5.0.11"
)
sys.exit(cli.main(["--elastic", "-np", "2", "true"]))
"""
    marker = "TFRING_TEST_JOB=" + str(tmp_path)
    begin = time.monotonic()
    job = start([sys.executable, "-c", program], env=dict([marker.split("=")]))
    output, _ = job.communicate(timeout=30)
    assert 2 <= time.monotonic() - begin < 20
    assert job.returncode != 0
    assert output == (
        "tfringrun: all ranks have left the job, and their processes did not "
        "end in 1 s.\n"
    )
    assert running(marker) == []

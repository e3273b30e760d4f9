"""The ranks' output as a user sees it, with each MPI launcher's marks."""

import pytest

from tfring.run import mpi_launchers
from tfring.run.mpi_launchers import Family, MpiLauncher
from tfring.run.output import Screen, StreamReader
from tfring.run.wrapper import Report

OPEN_MPI_4 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "4.1.8")
OPEN_MPI_5 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "5.0.11")
MPICH = MpiLauncher("/mpi/bin/mpirun", Family.HYDRA, "5.0.2")
LAUNCHERS = [OPEN_MPI_4, OPEN_MPI_5, MPICH]


class FakeTerminal:
    """Takes what a launcher writes and keeps what a user would see."""

    def __init__(self, launcher):
        self.written = b""
        self.now = 0.0
        screen = Screen(self._write)
        marks = mpi_launchers.marks(launcher)
        self.out, self.err = (
            StreamReader(stream, marks, screen, clock=lambda: self.now)
            for stream in (1, 2)
        )
        self.screen = screen

    def _write(self, stream, data):
        self.written += data

    def wait(self, seconds):
        self.now += seconds
        self.out.tick()
        self.err.tick()


def mark(launcher, rank):
    if launcher is MPICH:
        return b"\x1e%d\x1f" % rank
    space = b" " if launcher is OPEN_MPI_5 else b""
    return b"[1,%d]<stdout>:" % rank + space


@pytest.mark.parametrize(
    "launcher", LAUNCHERS, ids=["openmpi4", "openmpi5", "mpich"]
)
class TestOutput:
    def test_lines_get_their_rank(self, launcher):
        terminal = FakeTerminal(launcher)
        one, eleven = mark(launcher, 1), mark(launcher, 11)
        terminal.out.feed(one + b"a\n" + one + b"\n" + eleven + b"[1,2] b\r\n")
        assert terminal.written == b"[1] a\n[1] \n[11] [1,2] b\r\n"

    def test_cut_anywhere(self, launcher):
        one, two = mark(launcher, 1), mark(launcher, 2)
        text = one + b"some text\n" + two + b"and [x] more\n" + one + b"end\n"
        for cut in range(len(text)):
            terminal = FakeTerminal(launcher)
            terminal.out.feed(text[:cut])
            terminal.out.feed(text[cut:])
            assert terminal.written == (
                b"[1] some text\n[2] and [x] more\n[1] end\n"
            ), f"cut at {cut}"

    def test_lines_do_not_mix(self, launcher):
        terminal = FakeTerminal(launcher)
        terminal.out.feed(mark(launcher, 0) + b"half")
        terminal.out.feed(mark(launcher, 1) + b"whole\n")
        terminal.out.feed(mark(launcher, 0) + b" line\n")
        assert terminal.written == b"[1] whole\n[0] half line\n"

    def test_progress_bar(self, launcher):
        terminal = FakeTerminal(launcher)
        terminal.out.feed(mark(launcher, 0) + b"\r1/3 =")
        assert terminal.written == b""
        assert terminal.out.tick() == pytest.approx(0.1)
        terminal.wait(0.11)
        terminal.out.feed(mark(launcher, 0) + b"\b\b\r2/3 ==\r")
        terminal.wait(0.11)
        assert terminal.out.tick() is None
        assert terminal.written == b"[0] \r[0] 1/3 =\b\b\r[0] 2/3 =="
        # Another rank speaks, and the bar goes on below.
        terminal.written = b""
        terminal.err.feed(mark(launcher, 1) + b"warning\n")
        terminal.out.feed(mark(launcher, 0) + b"3/3 ===\n")
        assert terminal.written == b"\n[1] warning\n[0] \r[0] 3/3 ===\n"

    def test_newline_of_an_interrupted_line(self, launcher):
        terminal = FakeTerminal(launcher)
        terminal.out.feed(mark(launcher, 0) + b"bar")
        terminal.wait(0.2)
        terminal.out.feed(mark(launcher, 1) + b"text\n")
        terminal.out.feed(mark(launcher, 0) + b"\n")
        terminal.out.feed(mark(launcher, 0) + b"next\n")
        assert terminal.written == b"[0] bar\n[1] text\n[0] next\n"

    def test_end_without_newline(self, launcher):
        terminal = FakeTerminal(launcher)
        terminal.out.feed(mark(launcher, 0) + b"last [")
        terminal.out.close()
        terminal.screen.close()
        assert terminal.written == b"[0] last [\n"

    def test_the_launchers_own_words(self, launcher):
        terminal = FakeTerminal(launcher)
        ruler = b"-" * 74 + b"\n"
        terminal.err.feed(mark(launcher, 1) + b"rank's\n")
        terminal.err.feed(ruler + b"mpirun's\n" + ruler)
        terminal.err.feed(mark(launcher, 1) + b"rank's\n")
        assert terminal.written == (
            b"[1] rank's\n" + ruler + b"mpirun's\n" + ruler + b"[1] rank's\n"
        )


def test_mpich_reports_a_failed_rank():
    terminal = FakeTerminal(MPICH)
    terminal.err.feed(b"\x1e1\x1ferror\n\x1e1\x1f\x1eexit 3 node1\x1f\n\n===\n")
    assert terminal.err.reports == [Report(1, "exit", 3, "node1")]
    assert terminal.err.last_lines == {1: b"error\n"}
    assert terminal.written == b"[1] error\n\n===\n"


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        (b"PRTE has lost communication with a remote daemon.\n", True),
        (b"prterun has exited due to process rank 0 with PID 0 on\n", True),
        (b"mpirun noticed that process rank 1 with PID 9 on node a\n", True),
        (b"A daemon failed to report back after being spawned. This\n", True),
        (b"No protocol specified\n", False),
    ],
)
@pytest.mark.parametrize("width", [60, 74])
@pytest.mark.parametrize("launcher", [OPEN_MPI_4, OPEN_MPI_5])
def test_open_mpi_gives_a_job_up(launcher, width, line, failed):
    ruler = b"-" * width + b"\n"
    terminal = FakeTerminal(launcher)
    terminal.err.feed(mark(launcher, 1) + line)  # A rank may say anything.
    assert not terminal.err.job_failed
    terminal.err.feed(ruler + line[:9])
    terminal.err.feed(line[9:] + ruler)
    assert terminal.err.job_failed == failed


def test_zero_bytes_are_dropped():
    terminal = FakeTerminal(OPEN_MPI_5)
    terminal.err.feed(mark(OPEN_MPI_5, 0) + b"a\0\n")
    assert terminal.written == b"[0] a\n"

"""The ranks' output as a user sees it, with each MPI launcher's marks."""

import os
import types

import pytest

from tfring.launcher import mpi_launchers, output
from tfring.launcher.elastic.screen import JobScreen, Writer
from tfring.launcher.mpi_launchers import Family, MpiLauncher
from tfring.launcher.output import Screen, StreamReader, View
from tfring.launcher.wrapper import Report

OPEN_MPI_4 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "4.1.8")
OPEN_MPI_5 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "5.0.11")
MPICH = MpiLauncher("/mpi/bin/mpirun", Family.HYDRA, "5.0.2")
RULER = b"-" * 74 + b"\n"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(output, "time", clock)
    return clock


class FakeTerminal:
    """Takes the output of a launcher, and keeps the text that a user sees."""

    def __init__(self, launcher=OPEN_MPI_5, **view):
        self.launcher = launcher
        self.written = b""
        self.reports = []
        self.screen = Screen(self._write, View(**view))
        marks = mpi_launchers.marks(launcher)
        self.out, self.err = (
            StreamReader(stream, marks, self.screen, self.reports.append)
            for stream in (1, 2)
        )

    def _write(self, stream, data):
        self.written += data

    def prints(self, rank, *texts):
        for text in texts:
            self.out.feed(mark(self.launcher, rank) + text)

    def complains(self, rank, *lines):
        """Lines of a rank on stderr, each as the launcher marks it."""
        for line in lines:
            self.err.feed(mark(self.launcher, rank) + line + b"\n")

    def close(self, explained=False):
        self.out.close()
        self.err.close()
        self.screen.close(explained=explained)


def mark(launcher, rank):
    if launcher is MPICH:
        return b"\x1e%d\x1f" % rank
    space = b" " if launcher is OPEN_MPI_5 else b""
    return b"[1,%d]<stdout>:" % rank + space


@pytest.mark.parametrize(
    "launcher",
    [OPEN_MPI_4, OPEN_MPI_5, MPICH],
    ids=["openmpi4", "openmpi5", "mpich"],
)
class TestOutput:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            (
                [(1, b"a\n"), (1, b"\n"), (11, b"[1,2] b\r\n")],
                b"[1] a\n[1] \n[11] [1,2] b\n",
            ),
            # Lines do not mix.
            (
                [(0, b"half"), (1, b"whole\n"), (0, b" line\n")],
                b"[1] whole\n[0] half line\n",
            ),
            ([(0, b"last [")], b"[0] last [\n"),
            ([(0, b"a\0\n")], b"[0] a\n"),
            # This line is a rank's, and not the launcher's.
            ([(1, b"-" * 80 + b"\n")], b"[1] " + b"-" * 80 + b"\n"),
        ],
    )
    def test_lines_get_their_rank(self, launcher, given, shown):
        terminal = FakeTerminal(launcher)
        for rank, text in given:
            terminal.prints(rank, text)
        terminal.close()
        assert terminal.written == shown

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

    def test_rank_0s_progress_bar(self, launcher):
        terminal = FakeTerminal(launcher)
        for rank in (0, 1):
            terminal.prints(rank, b"\r1/3 ", b"=  ", b"\b\b\b\r2/3 ==\r")
        assert terminal.written == (b"[0] 1/3 \r[0] 1/3 =  \r[0] 2/3 ==")
        # Another rank speaks, and the bar goes on below.
        terminal.written = b""
        terminal.complains(1, b"warning")
        for rank in (0, 1):
            terminal.prints(rank, b"3/3 \x1b[1m===\x1b[0m", b"\n")
        bar = b"3/3 \x1b[1m===\x1b[0m"
        assert terminal.written == (
            b"\n[1] warning\n[0] %b\r[0] %b\n[1] %b\n" % (bar, bar, bar)
        )

    def test_the_launchers_own_words(self, launcher, clock):
        terminal = FakeTerminal(launcher)
        words = RULER + b"mpirun's\n" + RULER
        terminal.complains(1, b"rank's")
        terminal.err.feed(words)
        clock.now = 2.1
        terminal.screen.tick(ending=True)
        terminal.complains(1, b"rank's")
        assert terminal.written == b"[1] rank's\n" * 2
        terminal.screen.tick()
        assert terminal.written == b"[1] rank's\n" * 2 + words


def test_mpich_reports_a_failed_rank():
    terminal = FakeTerminal(MPICH)
    terminal.err.feed(b"\x1e1\x1ferror\n\x1e1\x1f\x1eexit 3 node1\x1f\n\n===\n")
    assert terminal.reports == [Report(1, "exit", 3, "node1")]
    assert terminal.screen.last_words(1) == ("", "error")
    assert terminal.written == b"[1] error\n"
    terminal.close()
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
    terminal.complains(1, line[:-1])  # A rank may say anything.
    assert not terminal.screen.job_failed
    terminal.err.feed(ruler + line[:9])
    terminal.err.feed(line[9:] + ruler)
    assert terminal.screen.job_failed == failed


def traceback(rank):
    return [
        b"Traceback (most recent call last):",
        b'  File "a.py", line 1',
        b"    call()",
        b"ValueError: of rank %d" % rank,
        b"More words.",
    ]


def shown(rank, *more):
    """A rank's traceback, and more lines of it, as a user sees them."""
    return b"".join(b"[%d] %b\n" % (rank, x) for x in (*traceback(rank), *more))


class TestFailures:
    def test_tracebacks_do_not_mix_and_the_first_rank_is_last(self, clock):
        terminal = FakeTerminal()
        for lines in zip(*map(traceback, range(3)), strict=True):
            for rank, line in enumerate(lines):
                terminal.complains(rank, line)
        assert terminal.written == b""
        terminal.screen.failed = 1
        clock.now = 2.1
        terminal.screen.tick()
        assert terminal.written == shown(0) + shown(2)
        terminal.close(explained=True)
        assert terminal.written == shown(0) + shown(2) + shown(1)

    def test_a_traceback_that_the_rank_survives(self, clock):
        terminal = FakeTerminal()
        terminal.complains(1, *traceback(1))
        words = ("ValueError: of rank 1", "More words.")
        assert terminal.screen.last_words(1) == words
        clock.now = 2.1
        terminal.screen.tick()
        assert terminal.written == shown(1)
        # It may be what the rank fails by, if it says no more.
        assert terminal.screen.last_words(1) == words
        terminal.complains(1, b"went on")
        assert terminal.written == shown(1, b"went on")
        assert terminal.screen.last_words(1) == ("", "went on")

    def test_the_exception_is_the_last_of_a_chain(self):
        terminal = FakeTerminal()
        terminal.complains(
            *(1, *traceback(1), b""),
            b"During handling of the above exception, another one occurred:",
            *(b"", *traceback(1)[:-2], b"a.b.LastError: last"),
        )
        assert terminal.screen.last_words(1)[0] == "a.b.LastError: last"

    @pytest.mark.parametrize(
        ("before", "between"),
        [
            # A thread's log, as absl and orbax write it, its traceback, and a
            # part of that.
            ([b"    WARNING:absl: from a thread"], [b"INFO: saved", b"^^^^^"]),
            ([], [b"ERROR:root:failed", *traceback(7)]),
            (traceback(7)[:3], [b"^^^^^^^^^^"]),
        ],
    )
    def test_a_traceback_with_lines_of_other_threads(self, before, between):
        terminal = FakeTerminal()
        header, frame, source, exception, _ = traceback(1)
        lines = [header, *before, *between, frame, source, exception]
        terminal.complains(1, *lines, b"Expected: 3")
        said = terminal.screen.last_words(1)[0]
        assert said == "ValueError: of rank 1"
        # The lines come between the frames and the exception, too.
        terminal.complains(2, header, frame, source, b"^^^^^", exception)
        assert terminal.screen.last_words(2)[0] == said

    # TensorFlow's traces of a function, of a session, of several operations,
    # and of one that runs eagerly.
    @pytest.mark.parametrize(
        "lines",
        [
            """a.LostError: Graph execution error:

Detected at node TfringDone defined at (most recent call last):
  File "train.py", line 5, in <module>

allreduce of 'x': rank 1 is lost.
\t [[{{node TfringDone}}]] [Op:__inference_step_12]""",
            """a.LostError: Graph execution error:

Detected at node 'TfringDone' defined at (most recent call last):
    File "train.py", line 5, in <module>
Node: 'TfringDone'
allreduce of 'x': rank 1 is lost.
\t [[{{node TfringDone}}]]

Original stack trace for 'TfringDone':
  File "train.py", line 5, in <module>""",
            """a.LostError: Graph execution error:

2 root error(s) found.
  (0) UNAVAILABLE: allreduce of 'x': rank 1 is lost.
\t [[{{node TfringDone}}]]
  (1) CANCELLED: Function was cancelled.
0 successful operations.""",
            "a.LostError: {{function_node __wrapped__TfringAllreduce_device_/"
            "job:localhost/replica:0/task:0/device:CPU:0}} allreduce of 'x': "
            "rank 1 is lost. [Op:TfringAllreduce] name: ",
        ],
    )
    def test_the_reason_of_an_operations_error(self, lines):
        terminal = FakeTerminal()
        frames = traceback(1)[:-2]
        terminal.complains(1, *frames, *lines.encode().split(b"\n"))
        exception = "a.LostError: allreduce of 'x': rank 1 is lost."
        assert terminal.screen.last_words(1)[0] == exception

    @pytest.mark.parametrize("verbose", [False, True])
    @pytest.mark.parametrize("stream", ["out", "err"])
    @pytest.mark.parametrize("explained", [False, True])
    def test_the_launchers_words(self, verbose, stream, explained):
        words = RULER + b"prterun detected that one or more\n"
        terminal = FakeTerminal(verbose=verbose)
        getattr(terminal, stream).feed(words)
        assert terminal.written == (words if verbose else b"")
        # The words are shown if nothing else explains the end.
        terminal.close(explained=explained)
        assert terminal.written == (b"" if explained > verbose else words)

    @pytest.mark.parametrize(
        "line",
        [
            b"application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1",
            b"Abort(7) on node 1 (rank 1 in comm 0): application called "
            b"MPI_Abort(MPI_COMM_WORLD, 7) - process 1",
        ],
    )
    def test_mpichs_words_in_the_name_of_a_rank(self, line):
        terminal = FakeTerminal(MPICH)
        terminal.complains(1, b"mine", line)
        assert terminal.written == b"[1] mine\n"
        assert terminal.screen.last_words(1) == ("", "mine")
        terminal.close(explained=True)
        assert terminal.written == b"[1] mine\n"

    def test_last_words(self):
        terminal = FakeTerminal()
        terminal.complains(
            1,
            b"\x1b[31mthe reason\x1b[0m",
            b"I0000 00:00:1795396079.202971   20559 port.cc:153] oneDNN is on.",
            b"2026-11-23 01:00:00.123456: W tensorflow/core/a.cc:1] slow",
            b"[node1:42] *** End of error message ***",
            b"",
        )
        assert terminal.screen.last_words(1) == ("", "the reason")


@pytest.mark.parametrize("verbose", [False, True])
def test_tensorflows_words_at_import(verbose):
    terminal = FakeTerminal(verbose=verbose)
    words = [
        b"WARNING: All log messages before absl::InitializeLog() is called are "
        b"written to STDERR",
        b"I0000 00:00:1795698960.158087   26214 port.cc:153] oneDNN custom "
        b"operations are on. You may see slightly different results.",
    ]
    terminal.complains(0, *words, b"E0000 00:00 a.cc:1] an error", *words)
    lines = [*words, b"E0000 00:00 a.cc:1] an error", *words]
    if not verbose:
        lines = lines[2:3]
    assert terminal.written == b"".join(b"[0] %b\n" % line for line in lines)


def test_one_rank_alone():
    terminal = FakeTerminal(only_rank=0)
    for rank in (1, 0):
        terminal.prints(rank, b"\r1/2", b"\r2/2\nend\n")
    assert terminal.written == b"1/2\r2/2\nend\n"


def test_a_bar_in_a_file(clock):
    """A bar is one line when it ends; rank 0's also every ten seconds."""
    file = FakeTerminal(terminals=frozenset())
    for seconds, text in [
        (9, b"\r\x1b[1m1/5\x1b[0m"),
        (18, b"\b\b\b2/5"),
        (20, b"\b\b\b\r\x1b[1m3/5\x1b[0m  "),
        (29, b"\r4/5"),
        (30, b"\r5/5  \n"),
    ]:
        clock.now = seconds
        for rank in (0, 1):
            file.prints(rank, text)
    assert file.written == b"[0] 3/5\n[0] 5/5\n[1] 5/5\n"


def test_a_line_in_a_file():
    file = FakeTerminal(terminals=frozenset())
    file.prints(0, b"\x1b[32mhalf \xff", b"\x1b[0m line\r\n")
    assert file.written == b"[0] half \xff line\n"


def test_the_launcher_says_what_cannot_be_encoded(capfd):
    """An exception of a worker may name a file that is not in UTF-8."""
    screen = JobScreen(View())
    screen.say("ValueError: caf\udce9.npy")
    screen.end("", lambda: False)
    assert "caf?.npy" in capfd.readouterr().err


def test_the_host_of_a_rank(capfd):
    screen = JobScreen(View(shows_hosts=True))
    screen.prefixes[2], screen.hosts[2] = "1", "node7"
    screen.take(1, 2, b"here\n")
    screen.end("", lambda: False)
    assert capfd.readouterr().out == "[1 node7] here\n"


def test_a_full_disk_takes_one_stream_only():
    reads, writes = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    writer = Writer()
    for stream in (full, writes):
        writer.write(stream, b"words")
    writer.close(lambda: False)
    assert os.read(reads, 100) == b"words"
    assert {s: e.errno for s, e in writer.errors.items()} == {full: 28}
    for descriptor in (reads, writes, full):
        os.close(descriptor)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_nobody_reads_is_left_when_the_job_is_stopped(stopped):
    reads, writes = os.pipe()
    writer = Writer()
    writer.write(writes, b"x" * (2 << 20))
    assert writer.is_full()
    unread = 0 if stopped else 2 << 20

    def is_stopped():
        nonlocal unread
        while unread:
            unread -= len(os.read(reads, unread))
        return stopped

    writer.close(is_stopped)
    assert writer.is_full() == stopped
    os.close(reads)  # which ends the thread

"""The ranks' output as a user sees it, with each MPI launcher's marks."""

import pytest

from tfring.launcher import mpi_launchers, plain
from tfring.launcher.held import HeldLines
from tfring.launcher.mpi_launchers import Family, MpiLauncher
from tfring.launcher.output import Screen, StreamReader, View
from tfring.launcher.wrapper import Report

OPEN_MPI_4 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "4.1.8")
OPEN_MPI_5 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "5.0.11")
MPICH = MpiLauncher("/mpi/bin/mpirun", Family.HYDRA, "5.0.2")
LAUNCHERS = [OPEN_MPI_4, OPEN_MPI_5, MPICH]
RULER = b"-" * 74 + b"\n"


class FakeTerminal:
    """Takes what a launcher writes and keeps what a user would see."""

    def __init__(self, launcher=OPEN_MPI_5, **view):
        self.launcher = launcher
        self.written = b""
        self.now = 0.0
        screen = Screen(self._write, View(**view))
        clock = lambda: self.now  # noqa: E731
        self.held = HeldLines(
            screen.show_lines, verbose=screen.view.verbose, clock=clock
        )
        marks = mpi_launchers.marks(launcher)
        self.out, self.err = (
            StreamReader(stream, marks, screen, self.held, clock)
            for stream in (1, 2)
        )
        self.screen = screen

    def _write(self, stream, data):
        self.written += data

    def prints(self, rank, text):
        self.out.feed(mark(self.launcher, rank) + text)

    def complains(self, rank, *lines):
        """Lines of a rank on stderr, each as the launcher marks it."""
        for line in lines:
            self.err.feed(mark(self.launcher, rank) + line + b"\n")

    def shown(self, given):
        """Takes (rank, text) on stdout, and waits for so many seconds."""
        for each in given:
            if isinstance(each, float):
                self.wait(each)
            else:
                self.prints(*each)
        self.close()
        return self.written

    def wait(self, seconds):
        self.now += seconds
        self.out.tick()
        self.err.tick()
        self.held.tick()

    def close(self, explained=False):
        self.out.close()
        self.err.close()
        self.held.close(explained=explained)
        self.screen.close()


def mark(launcher, rank):
    if launcher is MPICH:
        return b"\x1e%d\x1f" % rank
    space = b" " if launcher is OPEN_MPI_5 else b""
    return b"[1,%d]<stdout>:" % rank + space


@pytest.mark.parametrize(
    "launcher", LAUNCHERS, ids=["openmpi4", "openmpi5", "mpich"]
)
class TestOutput:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            (
                [(1, b"a\n"), (1, b"\n"), (11, b"[1,2] b\r\n")],
                b"[1] a\n[1] \n[11] [1,2] b\r\n",
            ),
            # Lines do not mix.
            (
                [(0, b"half"), (1, b"whole\n"), (0, b" line\n")],
                b"[1] whole\n[0] half line\n",
            ),
            # The newline of a line that was interrupted is no line.
            (
                [(0, b"bar"), 0.2, (1, b"text\n"), (0, b"\n"), (0, b"next\n")],
                b"[0] bar\n[1] text\n[0] next\n",
            ),
            ([(0, b"last [")], b"[0] last [\n"),
            ([(0, b"a\0\n")], b"[0] a\n"),
        ],
    )
    def test_lines_get_their_rank(self, launcher, given, shown):
        assert FakeTerminal(launcher).shown(given) == shown

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

    def test_progress_bar(self, launcher):
        terminal = FakeTerminal(launcher)
        terminal.prints(0, b"\r1/3 =")
        assert terminal.written == b""
        assert terminal.out.tick() == pytest.approx(0.1)
        terminal.wait(0.11)
        terminal.prints(0, b"\b\b\r2/3 ==\r")
        terminal.wait(0.11)
        assert terminal.out.tick() is None
        assert terminal.written == b"[0] \r[0] 1/3 =\b\b\r[0] 2/3 =="
        # Another rank speaks, and the bar goes on below.
        terminal.written = b""
        terminal.complains(1, b"warning")
        terminal.prints(0, b"3/3 ===\n")
        assert terminal.written == b"\n[1] warning\n[0] \r[0] 3/3 ===\n"

    def test_the_launchers_own_words(self, launcher):
        terminal = FakeTerminal(launcher)
        words = RULER + b"mpirun's\n" + RULER
        terminal.complains(1, b"rank's")
        terminal.err.feed(words)
        terminal.wait(1.1)
        terminal.complains(1, b"rank's")
        assert terminal.written == b"[1] rank's\n" + words + b"[1] rank's\n"


def test_mpich_reports_a_failed_rank():
    terminal = FakeTerminal(MPICH)
    terminal.err.feed(b"\x1e1\x1ferror\n\x1e1\x1f\x1eexit 3 node1\x1f\n\n===\n")
    assert terminal.err.reports == [Report(1, "exit", 3, "node1")]
    assert terminal.err.last_lines == {1: b"error"}
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
    assert not terminal.err.job_failed
    terminal.err.feed(ruler + line[:9])
    terminal.err.feed(line[9:] + ruler)
    assert terminal.err.job_failed == failed


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
    def test_tracebacks_do_not_mix_and_the_first_rank_is_last(self):
        terminal = FakeTerminal()
        for lines in zip(*map(traceback, range(3)), strict=True):
            for rank, line in enumerate(lines):
                terminal.complains(rank, line)
        assert terminal.written == b""
        terminal.held.heed_failure(1)
        assert terminal.held.exception(1) == "ValueError: of rank 1"
        terminal.wait(1.1)
        assert terminal.written == shown(0) + shown(2)
        terminal.close(explained=True)
        assert terminal.written == shown(0) + shown(2) + shown(1)

    def test_a_traceback_that_the_rank_survives(self):
        terminal = FakeTerminal()
        terminal.complains(1, *traceback(1))
        terminal.wait(1.1)
        assert terminal.written == shown(1)
        # It may be what the rank fails by, if it says no more.
        assert terminal.held.exception(1) == "ValueError: of rank 1"
        terminal.complains(1, b"went on")
        assert terminal.written == shown(1, b"went on")
        assert terminal.held.exception(1) == ""

    def test_a_rank_that_never_pauses_is_not_held_for_ever(self):
        terminal = FakeTerminal()
        terminal.complains(1, *traceback(1))
        for _ in range(7):
            terminal.wait(0.5)
            terminal.complains(1, b"more")
        assert terminal.written.startswith(shown(1, b"more"))

    def test_the_exception_is_the_last_of_a_chain(self):
        terminal = FakeTerminal()
        terminal.complains(
            *(1, *traceback(1), b""),
            b"During handling of the above exception, another one occurred:",
            *(b"", *traceback(1)[:-2], b"a.b.LastError: last"),
        )
        assert terminal.held.exception(1) == "a.b.LastError: last"

    @pytest.mark.parametrize("verbose", [False, True])
    def test_the_launchers_words_about_a_failure(self, verbose):
        words = RULER + b"prterun detected that one or more\n"
        for stream in ("out", "err"):
            terminal = FakeTerminal(verbose=verbose)
            getattr(terminal, stream).feed(words)
            assert terminal.written == (words if verbose else b"")
            terminal.held.expect_failure()
            terminal.wait(1.1)
            terminal.close(explained=True)
            assert terminal.written == (words if verbose else b"")
            # Where nobody knows better they are shown.
            terminal = FakeTerminal(verbose=verbose)
            getattr(terminal, stream).feed(words)
            terminal.close(explained=False)
            assert terminal.written == words

    @pytest.mark.parametrize(
        "line",
        [
            b"Aborted (core dumped)",
            b"application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1",
            b"Abort(7) on node 1 (rank 1 in comm 0): application called "
            b"MPI_Abort(MPI_COMM_WORLD, 7) - process 1",
        ],
    )
    def test_words_that_no_program_wrote(self, line):
        terminal = FakeTerminal(MPICH)
        terminal.complains(1, b"mine", line)
        assert terminal.written == b"[1] mine\n"
        assert terminal.err.last_lines == {1: b"mine"}
        # Where nobody says more.
        terminal.close(explained=False)
        said = line + b"\n" if b"MPI_Abort" in line else b""
        assert terminal.written == b"[1] mine\n" + said
        terminal = FakeTerminal(MPICH, verbose=True)
        terminal.complains(1, b"mine", line)
        assert terminal.written == b"[1] mine\n[1] " + line + b"\n"


def test_last_words():
    terminal = FakeTerminal()
    terminal.complains(
        1,
        b"the reason",
        b"I0000 00:00:1795396079.202971   20559 port.cc:153] oneDNN is on.",
        b"2026-11-23 01:00:00.123456: W tensorflow/core/a.cc:1] slow",
        b"[node1:42] *** End of error message ***",
        b"",
    )
    assert terminal.err.last_lines == {1: b"the reason"}


def test_one_rank_alone():
    terminal = FakeTerminal(only_rank=0)
    both = [(1, b"not mine\n"), (0, b"\r1/2"), 0.2, (1, b"not mine\n")]
    assert terminal.shown([*both, (0, b"\r2/2\nend\n")]) == b"\r1/2\r2/2\nend\n"


class TestFile:
    """Lines for a file: no carriage return, backspace or colour."""

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            # A bar that stands still is shown once.
            ([b"\r1/2 =", *[1.0] * 100, b"\n"], b"[0] 1/2 =\n"),
            # One that moves, after 10 seconds and at its end.
            (
                [
                    *(b"\r\x1b[1m1/4\x1b[0m", 9.0, b"\b\b\b2/4", 2.0),
                    *(b"\r3/4", 2.0, b"\r4/4 \n"),
                ],
                b"[0] 2/4\n[0] 4/4\n",
            ),
            # Other lines come as ever.
            ([b"half \xff", 0.2, b" line\r\n"], b"[0] half \xff line\n"),
            # A bar after words.
            ([b"0%", 0.2, b"\r50%\r100%\n"], b"[0] 0%\n[0] 100%\n"),
        ],
    )
    def test_lines(self, given, shown):
        given = [e if isinstance(e, float) else (0, e) for e in given]
        file = FakeTerminal(terminals=frozenset())
        assert file.shown(given) == shown

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (b"plain", b"plain"),
            (b"abc\rX", b"Xbc"),
            (b"abc\r\x1b[KX", b"X"),
            (b"abc\x1b[2K\rX", b"X"),
            (b"abc\b\bX", b"aXc"),
            (b"\x1b[1;32mgreen\x1b[0m\n", b"green\n"),
            (b"50%\r60%\r", b"60%"),
            ("\r━\r━━".encode(), "━━".encode()),
        ],
    )
    def test_a_line_as_a_terminal_would_show_it(self, text, line):
        assert plain.text_of(text) == line
        if not text.endswith(b"\n"):
            assert plain.text_of(plain.abridge(text) + b"!") == plain.text_of(
                text + b"!"
            )

"""The launcher's parts, with no job started."""

import os
import shlex
import stat
import sys

import pytest

from tfring.run import hosts as hosts_lib
from tfring.run import launcher as launcher_lib
from tfring.run import mpi_launchers
from tfring.run.hosts import Host
from tfring.run.mpi_launchers import Family, Job, MpiLauncher
from tfring.run.output import Screen, StreamReader

OPEN_MPI_4 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "4.1.8")
OPEN_MPI_5 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "5.0.11")
MPICH = MpiLauncher("/mpi/bin/mpirun", Family.HYDRA, "5.0.2")
LAUNCHERS = [OPEN_MPI_4, OPEN_MPI_5, MPICH]


class TestHosts:
    def test_hosts(self):
        assert hosts_lib.parse_hosts("node1:4, node2") == [
            Host("node1", 4),
            Host("node2", 1),
        ]

    @pytest.mark.parametrize("text", ["", "node1:", ":4", "n:0", "n:-1", "n:x"])
    def test_bad_hosts(self, text):
        with pytest.raises(ValueError, match="expected host:slots"):
            hosts_lib.parse_hosts(text)

    def test_hostfile(self, tmp_path):
        path = tmp_path / "hosts"
        path.write_text(
            "# our machines\n"
            "node1 slots=4 max_slots=8\n"
            "\n"
            "node2:2  # the old one\n"
            "node3\n"
        )
        assert hosts_lib.read_hostfile(path) == [
            Host("node1", 4),
            Host("node2", 2),
            Host("node3", 1),
        ]

    def test_bad_hostfile(self, tmp_path):
        path = tmp_path / "hosts"
        path.write_text("node1\nnode2 slots=two\n")
        with pytest.raises(ValueError, match=r"hosts, line 2: .*'node2:two'"):
            hosts_lib.read_hostfile(path)
        path.write_text("# nothing\n")
        with pytest.raises(ValueError, match="names no hosts"):
            hosts_lib.read_hostfile(path)

    @pytest.mark.parametrize(
        ("package_cores", "ranks", "cores"),
        [
            ([8], 1, 8),
            ([8], 3, 2),
            ([4, 4], 4, 2),
            # One core each would strangle TensorFlow.
            ([2], 2, 0),
            ([2], 4, 0),
            # Three ranks of three cores fit into ten, but not into two fives.
            ([10], 3, 3),
            ([5, 5], 3, 0),
            # One rank on both packages: no launcher binds it so.
            ([4, 4], 1, 0),
        ],
    )
    def test_cores_to_bind(self, package_cores, ranks, cores):
        assert hosts_lib.cores_to_bind(package_cores, ranks) == cores

    def test_cores_of_this_machine(self):
        cores = sum(hosts_lib.cores_per_package())
        assert 1 <= cores <= len(os.sched_getaffinity(0))


def fake_mpirun(path, answer):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{answer}\nEOF\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class TestFindLauncher:
    @pytest.fixture(autouse=True)
    def _empty_machine(self, tmp_path, monkeypatch):
        self.root = tmp_path
        monkeypatch.setattr(
            sys, "executable", str(tmp_path / "venv/bin/python")
        )
        monkeypatch.setenv("PATH", f"{tmp_path}/path:/bin:/usr/bin")
        monkeypatch.setattr(
            mpi_launchers.shutil,
            "which",
            lambda name: self.which.get(name),
        )
        self.which = {}

    @pytest.mark.parametrize(
        ("answer", "family", "version"),
        [
            ("mpirun (Open MPI) 5.0.11\n\nReport bugs", "OPEN_MPI", "5.0.11"),
            ("mpiexec (OpenRTE) 4.1.4", "OPEN_MPI", "4.1.4"),
            ("mpirun (Open MPI) 5.0.0rc3", "OPEN_MPI", "5.0.0rc3"),
            (
                "HYDRA build details:\n"
                "    Version:                                 5.0.2\n"
                "    Release Date:                            Fri",
                "HYDRA",
                "5.0.2",
            ),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 2023",
                "HYDRA",
                "2021.9",
            ),
        ],
    )
    def test_identify(self, answer, family, version):
        path = fake_mpirun(self.root / "mpirun", answer)
        assert mpi_launchers.identify(path) == MpiLauncher(
            path, Family[family], version
        )

    def test_not_a_launcher(self):
        assert mpi_launchers.identify(self.root / "missing") is None
        path = fake_mpirun(self.root / "mpirun", "GNU bash, version 5.2.15")
        assert mpi_launchers.identify(path) is None

    def test_beside_the_interpreter_comes_first(self):
        ours = fake_mpirun(
            self.root / "venv/bin/mpirun", "mpirun (Open MPI) 5.0.11"
        )
        built = fake_mpirun(
            self.root / "build/bin/mpirun", "mpirun (Open MPI) 5.0.11"
        )
        found = mpi_launchers.find_launcher("Open MPI 5.0.11", str(built))
        assert found.path == ours

    def test_the_version_of_the_build_wins(self):
        fake_mpirun(self.root / "venv/bin/mpirun", "mpirun (Open MPI) 5.0.11")
        system = fake_mpirun(
            self.root / "usr/mpirun", "mpirun (Open MPI) 4.1.4"
        )
        self.which["mpirun"] = str(system)
        assert mpi_launchers.find_launcher("Open MPI 4.1.4").path == system

    def test_the_builds_own_may_be_gone(self):
        system = fake_mpirun(
            self.root / "usr/mpirun", "mpirun (Open MPI) 5.0.8"
        )
        self.which["mpirun"] = str(system)
        found = mpi_launchers.find_launcher(
            "Open MPI 5.0.11", "/tmp/build-env/bin/mpirun"
        )
        assert found.path == system

    def test_another_mpi_is_not_taken(self):
        path = fake_mpirun(
            self.root / "usr/mpirun", "HYDRA build details:\n Version: 5.0.2"
        )
        self.which["mpirun"] = str(path)
        with pytest.raises(
            mpi_launchers.LauncherNotFoundError,
            match=r"built with Open MPI 5.0.11.*mpirun \(MPICH 5.0.2\)",
        ):
            mpi_launchers.find_launcher("Open MPI 5.0.11")


class TestCommandLine:
    def test_open_mpi_5(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        job = Job(
            ranks=6,
            command=["python", "train.py", "-x"],
            hosts=[Host("node1", 4), Host("node2", 2)],
            exported=["PATH", "TFRING_SEGMENT_BYTES"],
        )
        line = mpi_launchers.command_line(OPEN_MPI_5, job)
        assert shlex.join(line) == (
            "/mpi/bin/mpirun -np 6 -H node1:4,node2:2 --map-by slot "
            "--bind-to none --stdin none --output tag:raw "
            "-x PATH -x TFRING_SEGMENT_BYTES python train.py -x"
        )

    def test_open_mpi_4(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        job = Job(ranks=2, command=["python"], cores_per_rank=4)
        line = mpi_launchers.command_line(OPEN_MPI_4, job)
        assert shlex.join(line) == (
            "/mpi/bin/mpirun -np 2 --allow-run-as-root --map-by slot:PE=4 "
            "--bind-to core --stdin none --tag-output python"
        )

    def test_open_mpi_oversubscribed(self):
        job = Job(ranks=9, command=["python"], oversubscribe=True)
        line = mpi_launchers.command_line(OPEN_MPI_5, job)
        assert "slot:OVERSUBSCRIBE" in line

    def test_mpich(self):
        job = Job(
            ranks=2,
            command=["python", "a b"],
            hosts=[Host("node1", 2)],
            cores_per_rank=4,
            exported=["PATH"],  # It forwards everything by itself.
        )
        line = mpi_launchers.command_line(MPICH, job)
        assert line[:9] == [
            "/mpi/bin/mpirun",
            *("-np", "2"),
            *("-prepend-pattern", "\x1e%r\x1f"),
            *("-hosts", "node1:2"),
            *("-bind-to", "core:4"),
        ]
        assert line[-3:] == ["tfringrun", "python", "a b"]

    def test_exported_names(self):
        job = {
            *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
            *("TFRING_SEGMENT_BYTES", "KERAS_BACKEND", "XLA_FLAGS", "MY_DATA"),
            *("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl"),
        }
        login = {
            *("_", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "HOME", "USER"),
            *("SSH_AUTH_SOCK", "TERM", "TMPDIR", "BASH_FUNC_module%%"),
            *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
        }
        assert set(mpi_launchers.exported_names(job | login)) == job


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
    terminal.err.feed(b"\x1e1\x1ferror\n\x1e1\x1f\x1eexit 3\x1f\n\n===\n")
    assert terminal.err.failed_ranks == [(1, 3)]
    assert terminal.written == b"[1] error\n\n===\n"


class TestUsage:
    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch):
        monkeypatch.setattr(hosts_lib, "cores_per_package", lambda: [8])
        monkeypatch.setattr(launcher_lib, "_find_launcher", lambda: OPEN_MPI_5)
        for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"):
            monkeypatch.delenv(name, raising=False)
        self.started = None

        def record(command, environment, marks):
            self.started = command
            return self

        monkeypatch.setattr(launcher_lib, "RunningJob", record)

    def run(self):
        return 0

    def test_command_keeps_its_flags(self):
        launcher_lib.main(["-np", "2", "echo", "-np", "3", "--verbose", "--"])
        assert self.started[-5:] == ["echo", "-np", "3", "--verbose", "--"]
        assert self.started[:3] == ["/mpi/bin/mpirun", "-np", "2"]

    def test_binds_to_a_share_of_the_cores(self):
        launcher_lib.main(["-np", "2", "echo"])
        assert "slot:PE=4" in self.started
        launcher_lib.main(["-np", "8", "echo"])
        assert "slot" in self.started
        launcher_lib.main(["-np", "9", "echo"])
        assert "slot:OVERSUBSCRIBE" in self.started
        assert "-x" not in self.started

    def test_slots_give_the_number_of_ranks(self, tmp_path):
        launcher_lib.main(["-H", "localhost:2,node2:3", "echo"])
        assert self.started[:3] == ["/mpi/bin/mpirun", "-np", "5"]
        assert "PATH" in self.started
        hostfile = tmp_path / "hosts"
        hostfile.write_text("node1 slots=4\n")
        launcher_lib.main(["--hostfile", str(hostfile), "echo"])
        assert self.started[:3] == ["/mpi/bin/mpirun", "-np", "4"]

    def test_the_batch_system_knows_the_hosts(self, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        launcher_lib.main(["-np", "64", "echo"])
        assert "slot" in self.started
        assert "PATH" in self.started

    def test_too_many_ranks_for_the_slots(self, capsys):
        launcher_lib.main(["-np", "3", "-H", "localhost:2", "echo"])
        assert "slot:OVERSUBSCRIBE" in self.started
        assert "3 ranks on hosts with 2 slots" in capsys.readouterr().err

    def test_verbose(self, capsys):
        launcher_lib.main(["-np", "2", "--verbose", "echo", "a b"])
        words = capsys.readouterr().err
        assert "Open MPI 5.0.11" in words
        assert "each bound to 4 cores" in words
        assert "/mpi/bin/mpirun -np 2" in words
        assert "echo 'a b'" in words

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-np", "2"], "what should the ranks run"),
            (["echo"], "how many ranks"),
            (["-np", "2", "train.py"], "Did you mean: python train.py"),
            (["-np", "2", "no-such-program"], "no command 'no-such-program'"),
            (["--hostfile", "/no/such/file", "echo"], "No such file"),
            (["-np", "2", "--self-test", "echo"], "takes no command"),
        ],
    )
    def test_mistakes(self, arguments, message, capsys):
        assert launcher_lib.main(arguments) == 2
        assert message in capsys.readouterr().err
        assert self.started is None

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-np", "0", "echo"], "a number of ranks from 1, got '0'"),
            (["-np", "two", "echo"], "a number of ranks from 1, got 'two'"),
            (["-H", "a:0", "echo"], "at least one slot, got 'a:0'"),
            (["-H", "a", "--hostfile", "b", "echo"], "not allowed with"),
            (["--nonsense", "echo"], "--nonsense"),
        ],
    )
    def test_bad_options(self, arguments, message, capsys):
        with pytest.raises(SystemExit) as exit_info:
            launcher_lib.main(arguments)
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err

"""The launcher's parts, with no job started."""

import os
import shlex
import socket
import stat
import sys

import pytest

import tfring
from tfring import horovod
from tfring.launcher import (
    cli,
    horovodrun,
    hosts as hosts_lib,
    mpi_launchers,
    prepare,
    wrapper,
)
from tfring.launcher.hosts import Host
from tfring.launcher.mpi_launchers import Family, Job, MpiLauncher

OPEN_MPI_4 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "4.1.8")
OPEN_MPI_5 = MpiLauncher("/mpi/bin/mpirun", Family.OPEN_MPI, "5.0.11")
MPICH = MpiLauncher("/mpi/bin/mpirun", Family.HYDRA, "5.0.2")
# The signals that Open MPI passes on, and what each becomes at a rank.
MEANINGS = {10: 10, 12: 12, 14: 15, 6: 2}


def fake_mpirun(path, answer):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{answer}\nEOF\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class TestFindLauncher:
    @pytest.fixture(autouse=True)
    def _empty_machine(self, tmp_path, monkeypatch):
        self.root = tmp_path
        monkeypatch.setattr(sys, "executable", f"{tmp_path}/venv/bin/python")
        monkeypatch.setenv("PATH", "/bin:/usr/bin")
        self.which = {}
        monkeypatch.setattr(mpi_launchers.shutil, "which", self.which.get)

    @pytest.mark.parametrize(
        ("answer", "family", "version"),
        [
            ("mpiexec (OpenRTE) 4.1.4", "OPEN_MPI", "4.1.4"),
            ("mpirun (Open MPI) 5.0.0rc3", "OPEN_MPI", "5.0.0rc3"),
            (
                "HYDRA build details:\n    Version:    5.0.2\n    Release: Fri",
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

    def test_major_version(self):
        for version in ("5.0.11", "5rc1", "5"):
            launcher = MpiLauncher("mpirun", Family.OPEN_MPI, version)
            assert launcher.major == 5

    def test_not_a_launcher(self):
        error = mpi_launchers.LauncherNotFoundError
        with pytest.raises(error, match="No such file or directory"):
            mpi_launchers.identify(self.root / "missing")
        path = fake_mpirun(self.root / "mpirun", "GNU bash, version 5.2.15")
        with pytest.raises(error, match="status 0, says: GNU bash, version 5"):
            mpi_launchers.identify(path)

    def test_a_launcher_that_fails(self):
        path = fake_mpirun(self.root / "venv/bin/mpirun", "")
        for script, said in (
            ("echo ----; echo [vm] Error: no home >&2", r"says: \[vm\] Error"),
            ("true", "says nothing"),
        ):
            path.write_text(f"#!/bin/sh\n{script}\nexit 255\n")
            with pytest.raises(
                mpi_launchers.LauncherNotFoundError,
                match=rf"/mpirun \(exit status 255, {said}",
            ):
                mpi_launchers.find_launcher("Open MPI 5.0.11")

    @pytest.mark.parametrize(
        ("there", "built_for", "expected"),
        [
            # The launcher beside the interpreter comes before the build's.
            ({"venv/bin": "5.0.11", "build": "5.0.11"}, "5.0.11", "venv/bin"),
            # The version of the build wins.
            ({"venv/bin": "5.0.11", "usr": "4.1.4"}, "4.1.4", "usr"),
            # The launcher of the build may be gone.
            ({"usr": "5.0.8"}, "5.0.11", "usr"),
        ],
    )
    def test_which_is_taken(self, there, built_for, expected):
        for folder, version in there.items():
            answer = f"mpirun (Open MPI) {version}"
            fake_mpirun(self.root / folder / "mpirun", answer)
        if "usr" in there:
            self.which["mpirun"] = str(self.root / "usr/mpirun")
        found = mpi_launchers.find_launcher(
            f"Open MPI {built_for}", str(self.root / "build/mpirun")
        )
        assert found.path == self.root / expected / "mpirun"

    def test_others_are_not_asked_once_the_right_one_is_found(self):
        fake_mpirun(self.root / "venv/bin/mpirun", "mpirun (Open MPI) 5.0.11")
        asked = self.root / "asked"
        other = fake_mpirun(self.root / "usr/mpirun", "")
        other.write_text(f"#!/bin/sh\ntouch {asked}\n")
        self.which["mpirun"] = str(other)
        mpi_launchers.find_launcher("Open MPI 5.0.11")
        assert not asked.exists()

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
            exported=["PATH", "TFRING_VERBOSE"],
        )
        line = mpi_launchers.command_line(OPEN_MPI_5, job)
        assert shlex.join(line) == (
            "/mpi/bin/mpirun -np 6 -H node1:4,node2:2 --map-by slot "
            "--bind-to none --stdin none --output tag:raw "
            "-x PATH -x TFRING_VERBOSE "
            f"{shlex.join(wrapper.command_line(MEANINGS))} python train.py -x"
        )

    def test_open_mpi_4(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        job = Job(ranks=2, command=["python"], cores_per_rank=4)
        line = mpi_launchers.command_line(OPEN_MPI_4, job)
        assert shlex.join(line) == (
            "/mpi/bin/mpirun -np 2 --allow-run-as-root --map-by slot:PE=4 "
            "--bind-to core --stdin none --tag-output "
            f"{shlex.join(wrapper.command_line(MEANINGS))} python"
        )

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
        meanings = "10=10,14=12,2=15,3=2"
        assert line[-3:] == [meanings, "python", "a b"]

    def test_ranks_of_one_machine_do_not_listen_to_others(self):
        here = Job(ranks=2, command=["python"], one_machine=True)
        elsewhere = Job(ranks=2, command=["python"])
        for launcher, variables in (
            (OPEN_MPI_5, {"OMPI_MCA_btl": "^tcp,ofi"}),
            (MPICH, {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}),
        ):
            assert mpi_launchers.environment(launcher, here) == variables
            assert mpi_launchers.environment(launcher, elsewhere) == {}

    def test_exported_names(self):
        job = {
            *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
            *("TFRING_VERBOSE", "KERAS_BACKEND", "XLA_FLAGS", "MY_DATA"),
            *("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl"),
        }
        login = {
            *("_", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "HOME", "USER"),
            *("SSH_AUTH_SOCK", "TERM", "TMPDIR", "BASH_FUNC_module%%"),
            *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
        }
        assert set(mpi_launchers.exported_names(job | login)) == job
        wanted = [("TERM", None), ("A", "1")]
        exported = mpi_launchers.exported_names(job | login, wanted)
        assert exported == sorted({*job, "TERM", "A"})


class TestUsage:
    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch):
        monkeypatch.setattr(hosts_lib, "cores_per_package", lambda: [8])
        monkeypatch.setattr(prepare, "find_launcher", lambda: OPEN_MPI_5)
        of_systems = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE")
        for name in [*os.environ]:
            if name in of_systems or name.startswith("TFRING_"):
                monkeypatch.delenv(name)
        self.started = None

        def record(launcher, command, environment, *rest, **options):
            self.started = command
            self.environment = environment
            self.options = options
            return self

        monkeypatch.setattr(prepare, "RunningJob", record)

    def run(self):
        return 0

    def failure(self):
        return ""

    def test_binds_to_a_share_of_the_cores(self):
        cli.main(["-np", "2", "echo"])
        assert "slot:PE=4" in self.started
        cli.main(["-np", "8", "echo"])
        assert "slot:PE=1" in self.started
        cli.main(["-np", "9", "echo"])
        assert "slot:OVERSUBSCRIBE" in self.started
        assert "-x" not in self.started

    def test_slots_give_the_number_of_ranks(self, tmp_path):
        cli.main(["-H", "localhost:2,node2:3", "echo"])
        assert self.started[:3] == ["/mpi/bin/mpirun", "-np", "5"]
        assert "PATH" in self.started
        hostfile = tmp_path / "hosts"
        hostfile.write_text("node1 slots=4\n")
        cli.main(["--hostfile", str(hostfile), "echo"])
        assert self.started[:3] == ["/mpi/bin/mpirun", "-np", "4"]

    def test_the_batch_system_knows_the_hosts(self, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        cli.main(["-np", "64", "echo"])
        assert "slot" in self.started
        assert "PATH" in self.started

    def test_memory_comes_in_huge_pages_unless_told_otherwise(
        self, monkeypatch
    ):
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
        cli.main(["-H", "node2:1", "echo"])
        assert "hugetlb=1" in self.environment["GLIBC_TUNABLES"]
        assert "GLIBC_TUNABLES" in self.started
        monkeypatch.setenv("GLIBC_TUNABLES", "")
        cli.main(["-np", "1", "echo"])
        assert self.environment["GLIBC_TUNABLES"] == ""

    def test_the_users_value_counts(self, monkeypatch):
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
        cli.main(["-np", "1", "echo"])
        assert self.environment["TF_CPP_MIN_LOG_LEVEL"] == "1"
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
        cli.main(["-np", "1", "echo"])
        assert self.environment["TF_CPP_MIN_LOG_LEVEL"] == "0"

    def test_variables_for_the_ranks(self, monkeypatch):
        monkeypatch.setenv("TMPDIR", "/scratch")
        monkeypatch.setenv("MINE", "1")
        arguments = ["-x", "TMPDIR", "-x", "NEW=a=b", "-x", "MINE=2", "echo"]
        assert cli.main(["-np", "2", *arguments]) == 0
        assert self.environment["NEW"] == "a=b"
        assert self.environment["MINE"] == "2"
        assert "-x" not in self.started
        # To other machines those go as well that belong to this one.
        assert cli.main(["-H", "node2:2", *arguments]) == 0
        exported = self.started[: self.started.index(sys.executable)]
        assert {"TMPDIR", "NEW", "MINE"} < set(exported)
        assert cli.main(["-H", "node2:2", "echo"]) == 0
        assert "TMPDIR" not in self.started

    def test_grace(self, monkeypatch):
        monkeypatch.delenv("TFRING_GRACE_SECONDS", raising=False)
        for seconds, options in ((30, []), (5.5, ["--grace", "5.5"])):
            assert cli.main(["-np", "1", *options, "echo"]) == 0
            assert self.options["grace_seconds"] == seconds
        monkeypatch.setenv("TFRING_GRACE_SECONDS", "0")
        assert cli.main(["-np", "1", "echo"]) == 0
        assert self.options["grace_seconds"] == 0

    def test_spellings_of_horovodrun(self, tmp_path):
        hostfile = tmp_path / "hosts"
        hostfile.write_text("localhost slots=4\n")
        settings = [
            *("--fusion-threshold-mb", "32"),
            *("--timeline-filename", "t.json"),
            *("--stall-check-warning-time-seconds", "5"),
            *("--stall-check-shutdown-time-seconds", "9"),
        ]
        options = ["--num-proc", "2", "-hostfile", str(hostfile)]
        assert cli.main([*options, *settings, "echo"]) == 0
        assert self.started[:3] == ["/mpi/bin/mpirun", "-np", "2"]
        found = {
            name: value
            for name, value in self.environment.items()
            if name.startswith("TFRING_")
        }
        assert found == {
            "TFRING_FUSION_THRESHOLD": str(32 << 20),
            "TFRING_TIMELINE": "t.json",
            "TFRING_STALL_CHECK_TIME_SECONDS": "5",
            "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "9",
        }
        assert cli.main([*options, "--no-stall-check", "echo"]) == 0
        assert self.environment["TFRING_STALL_CHECK_TIME_SECONDS"] == "0"
        assert self.environment["TFRING_STALL_SHUTDOWN_TIME_SECONDS"] == "0"

    def test_horovodrun_takes_horovods_options(self, capsys):
        arguments = [
            *("-np", "2", "-p", "22", "--gloo", "--cycle-time-ms", "5"),
            *("--start-timeout", "30", "--timeline-filename", "t.json"),
            *("--blacklist-cooldown-range", "10", "100"),
            *("echo", "--gloo"),
        ]
        assert horovodrun.main(arguments) == 0
        assert self.started[-2:] == ["echo", "--gloo"]
        assert self.environment["TFRING_INIT_TIMEOUT_SECONDS"] == "30"
        assert self.environment["TFRING_TIMELINE"] == "t.json"
        assert str(horovod.FOLDER) in self.environment["PYTHONPATH"]
        assert capsys.readouterr().err == (
            "horovodrun: tfring has nothing for these, and ignores them: -p, "
            "--gloo, --cycle-time-ms, --blacklist-cooldown-range.\n"
        )

    def test_horovodrun_has_no_fusion(self):
        arguments = ["-np", "2", "--fusion-threshold-mb", "0", "echo"]
        assert horovodrun.main(arguments) == 0
        assert self.environment["TFRING_FUSION_THRESHOLD"] == "0"

    def test_horovodrun_is_elastic_where_horovods_is(self, monkeypatch):
        seen = []
        monkeypatch.setattr(
            cli, "run", lambda options: seen.append(options.elastic)
        )
        for options in (
            ["-np", "2"],
            ["--min-num-proc", "2"],
            ["--max-np", "4"],
            ["--host-discovery-script", "hosts.sh"],
        ):
            horovodrun.main([*options, "echo"])
        assert seen == [False, True, True, True]

    def test_horovods_variables_are_read_where_its_name_is(
        self, monkeypatch, capsys
    ):
        monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "64")
        monkeypatch.setenv("HOROVOD_TIMELINE", "theirs.json")
        monkeypatch.setenv("HOROVOD_CYCLE_TIME", "1")
        option = ["-np", "2", "--timeline-filename", "ours.json"]
        assert cli.main([*option, "echo"]) == 0
        assert "TFRING_FUSION_THRESHOLD" not in self.environment
        assert capsys.readouterr().err == ""
        assert cli.main(["--horovod", *option, "echo"]) == 0
        assert self.environment["TFRING_FUSION_THRESHOLD"] == "64"
        assert self.environment["TFRING_TIMELINE"] == "ours.json"
        assert "ignores them: HOROVOD_CYCLE_TIME.\n" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["-v", "--version"])
    def test_version(self, option, capsys):
        with pytest.raises(SystemExit) as exit_info:
            cli.main([option])
        assert exit_info.value.code == 0
        assert capsys.readouterr().out == f"tfringrun {tfring.__version__}\n"

    def test_too_many_ranks_for_the_slots(self, capsys):
        cli.main(["-np", "3", "-H", "localhost:2", "echo"])
        assert "slot:OVERSUBSCRIBE" in self.started
        assert "3 ranks on hosts with 2 slots" in capsys.readouterr().err

    def test_verbose(self, capsys):
        cli.main(["-np", "2", "--verbose", "echo", "a b"])
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
            (["-np", "2", "--self-test", "--elastic"], "leave --elastic out"),
            (["-np", "2", "echo", "a", ":", "b"], "the argument ':'"),
            (["-np", "2", "-x", "NO_SUCH", "echo"], "-x NO_SUCH: it is not"),
            (["--min-np", "2", "echo"], "pass --elastic, too"),
            (["-np", "2", "--grace", "x", "echo"], "number of seconds from 0"),
            *(
                (["--elastic", *options.split(), "echo"], message)
                for options, message in (
                    ("--min-np 3 --max-np 2", "--max-np 2 is less than 3"),
                    ("--spares 1", "how many workers?"),
                    ("-H localhost:1 --min-np 2", "have 1 slots in all"),
                    (
                        "-np 2 --spares 1 -H a:2",
                        "-np 2 workers and 1 spare",
                    ),
                    ("--host-discovery-script none", "is no such program"),
                    ("-np 4 --min-np 1 --max-np 2", "-np 4 is not between"),
                    ("--rendezvous a:1 -H b:2", "Leave out -H"),
                    ("--min-np 1 --slots-per-host 2", "is for --rendezvous"),
                )
            ),
        ],
    )
    def test_mistakes(self, arguments, message, capsys):
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err
        assert self.started is None

    @pytest.mark.parametrize(
        ("token", "host", "message"),
        [
            ("", "localhost", "it is unset"),
            ("secret", "localhost", "it has 6 characters"),
            ("ab" * 32, "0.0.0.0", "where no other reaches it"),
        ],
    )
    def test_a_rendezvous_that_cannot_be(
        self, token, host, message, monkeypatch, capsys
    ):
        monkeypatch.setenv("TFRING_ELASTIC_TOKEN", token)
        with socket.create_server(("", 0)) as free:
            place = f"{host}:{free.getsockname()[1]}"
        assert cli.main(["--elastic", "--rendezvous", place, "echo"]) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-np", "0", "echo"], "a whole number from 1, got '0'"),
            (["-x", "A B", "echo"], "NAME or NAME=VALUE, got 'A B'"),
            (["--fusion-threshold-mb", "x", "echo"], "whole number from 0"),
            (["-H", "a:0", "echo"], "1 to 1024 slots, got 'a:0'"),
            (["-H", "a", "--hostfile", "b", "echo"], "not allowed with"),
            (["--nonsense", "echo"], "--nonsense"),
            (["--rendezvous", "localhost", "echo"], "expected HOST:PORT"),
        ],
    )
    def test_bad_options(self, arguments, message, capsys):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments)
        assert exit_info.value.code == 2
        assert message in capsys.readouterr().err

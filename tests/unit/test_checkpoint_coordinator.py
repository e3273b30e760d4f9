"""When all ranks save: here the one rank of a job."""

import signal
import threading

import pytest
import tensorflow as tf

from tfring._checkpoint.contents import items_of_variables
from tfring._checkpoint.coordinator import Coordinator
from tfring._checkpoint.files import Files
from tfring._checkpoint.folder import Folder
from tfring._checkpoint.requeue import requeue
from tfring._checkpoint.schedule import Schedule, Signals
from tfring._core import runtime

pytestmark = pytest.mark.usefixtures("initialized")


class LateFiles(Files):
    """Waits for `may_write` before it writes."""

    def __init__(self):
        self.may_write = threading.Event()

    def write_tensors(self, prefix, tensors):
        self.may_write.wait()
        super().write_tensors(prefix, tensors)


@pytest.fixture
def variable():
    return tf.Variable([1.0, 2.0])


@pytest.fixture
def files():
    return LateFiles()


@pytest.fixture
def coordinator(tmp_path, files):
    schedule = Schedule(10, None, lambda: 0.0)
    signals = Signals(["SIGTERM", "SIGUSR1"])
    made = Coordinator(
        *(Folder(tmp_path, files), schedule, signals),
        keep=3,
        strict=True,
        requeues=True,
    )
    yield made
    files.may_write.set()
    made.close()


def test_a_loss_gives_up_what_was_being_written(
    coordinator, files, variable, tmp_path
):
    items = items_of_variables([variable])
    coordinator.begin(0, items)
    assert not coordinator.vote(9).saves
    assert coordinator.vote(10).saves
    coordinator.save(10, items, {}, {"place": {}})
    # The other ranks of the next generation have a commit of step 8.
    coordinator.begin(8, items, goes_on=True)
    assert coordinator.vote(9).saves
    variable.assign([3.0, 4.0])
    files.may_write.set()
    coordinator.save(9, items, {}, {"place": {}})
    coordinator.wait()
    # The number before is not used twice, and is no checkpoint.
    folder = Folder(tmp_path)
    assert folder.numbers() == [2]
    assert folder.manifest(2)["step"] == 9
    assert folder.problem(2) is None
    assert folder.open_part(2, 0)("variables/0").tolist() == [3.0, 4.0]
    # The next one counts from there.
    coordinator.begin(12, items, goes_on=True)
    assert not coordinator.vote(18).saves
    assert coordinator.vote(19).saves


def test_a_first_begin_counts_from_there(coordinator, variable):
    items = items_of_variables([variable])
    coordinator.begin(0, items)
    coordinator.save(10, items, {}, {"place": {}})
    coordinator.begin(25, items)
    assert not coordinator.vote(34).saves
    assert coordinator.vote(35).saves


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Returns a function that puts a program in the place of Slurm's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "17")

    def write(text):
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    return write


def test_a_job_is_requeued_when_its_checkpoint_is_complete(
    coordinator, files, variable, tmp_path, scontrol, caplog
):
    path = tmp_path / "checkpoint-00000001/manifest.json"
    scontrol(f'[ -e {path} ] && echo "$*" >> {tmp_path}/log')
    files.may_write.set()
    items = items_of_variables([variable])
    coordinator.begin(0, items)
    signal.raise_signal(signal.SIGUSR1)
    assert coordinator.vote(1).signal == signal.SIGUSR1
    coordinator.save(1, items, {}, {"place": {}})
    assert coordinator.leave(1, signal.SIGUSR1) == 75
    assert (tmp_path / "log").read_text() == "requeue 17\n"
    assert "put job 17 back into its queue" in caplog.text


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo Requested operation is disabled >&2; exit 1", "is disabled"),
        ("exit 3", "exit status 3"),
        (None, "No such file"),
    ],
)
def test_what_slurm_says_is_passed_on(scontrol, program, said):
    if program is not None:
        scontrol(program)
    text = requeue()
    assert "`scontrol requeue 17` has failed" in text
    assert said in text


def test_a_job_of_another_system_is_not_requeued(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "no job of Slurm" in requeue()


def test_in_an_elastic_job_sigterm_is_for_its_worker_alone(
    coordinator, files, variable, monkeypatch
):
    monkeypatch.setattr(runtime, "may_grow", lambda: True)
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    files.may_write.set()
    items = items_of_variables([variable])
    coordinator.begin(0, items)
    signal.raise_signal(signal.SIGTERM)
    wish = coordinator.vote(1)
    assert wish == (True, signal.SIGTERM)
    coordinator.save(1, items, {}, {"place": {}})
    assert got == []
    coordinator.let_leave()
    assert got == [signal.SIGTERM]
    assert not coordinator.vote(2, is_last=True).saves
    # A signal is passed on, too, when nothing is saved any more.
    signal.raise_signal(signal.SIGTERM)
    coordinator.close()
    assert got == 2 * [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)

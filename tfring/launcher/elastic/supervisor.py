"""The program on each host of an elastic job that starts and kills workers.

It reads its configuration (`orders`) from standard input. Then it follows the
rendezvous' orders, passes on the workers' output, and reports how each worker
has ended. It ends, with all its workers, when its connection or its standard
input ends. In a task of a batch system `tasks` gives it the configuration, and
the host joins by itself.

Two processes share the work. One is the parent of the workers; the other is the
parent of that one, and only waits, to kill leftovers if it is killed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from tfring.launcher import command_line, orders, processes, rank_wrapper
from tfring.launcher.elastic import worker_process
from tfring.launcher.elastic.launcher_channels import Output, reach
from tfring.launcher.elastic.worker_process import WorkerProcess
from tfring.launcher.hosts import cpus_of_slot
from tfring.rendezvous import wire

# How long the launcher may take to read the workers' last output.
LAST_WORDS_SECONDS = 3.0


class Supervisor:
    """The workers of one host."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        """Connects to the rendezvous.

        Args:
            configuration: `token`, `address`, `host`, `command`, `environment`
                (variables that workers have besides this process's) and
                `silence_seconds` (after which a stopped worker is reported).
                For a host that the launcher does not know: `slots`,
                `patience_seconds` (for how long to try to reach the launcher)
                and `order` (which sorts such hosts). Optional: `interface` (the
                address at which workers listen; default: the one from which
                this process reaches the rendezvous), `has_lifeline` (whether
                the end of standard input ends this process; default True),
                `node` (equal for supervisors on one machine, whose workers
                share memory) and `threads` (how many a worker starts; default
                1).

        Raises:
            OSError: The rendezvous cannot be reached.
        """
        self._configuration = configuration
        # Keep a path, because the folder may be mounted again meanwhile.
        self._directory = Path.cwd()
        address = tuple(configuration["address"])
        token = configuration["token"]
        host = configuration["host"]
        hello = {"role": "supervisor", "host": host}
        if "slots" in configuration:
            hello["slots"] = configuration["slots"]
            hello["node"] = configuration.get("node")
            hello["order"] = configuration.get("order", 0)
        patience_seconds = configuration.get("patience_seconds", 0.0)
        control = reach(address, token, hello, patience_seconds)
        own_address = control.getsockname()[0]
        # A name may have several addresses. Workers use the one that has
        # answered.
        address = control.getpeername()[:2]
        self._control = wire.Channel(control)
        self._output = Output(address, token, host)
        # Marks the processes of this job. A job that a worker starts also has a
        # worker w1.
        self._job = hashlib.sha256(token.encode()).hexdigest()[:16]
        self._environment = {
            **os.environ,
            **configuration["environment"],
            "TFRING_ELASTIC_JOB": self._job,
            "TFRING_ELASTIC_TOKEN": token,
            "TFRING_ELASTIC_RENDEZVOUS": f"{address[0]}:{address[1]}",
            "TFRING_ELASTIC_INTERFACE": configuration.get(
                "interface", own_address
            ),
            # Workers with the same value share memory.
            "TFRING_ELASTIC_HOST": configuration.get("node", host),
        }
        self._workers: dict[str, WorkerProcess] = {}
        # Threads that pass on output, some of them of ended workers.
        self._forwarders: list[threading.Thread] = []
        self._ending = False
        # The job's exit status, once the rendezvous has sent it.
        self._status: int | None = None
        # The signal that has asked this process to end; 0 for none.
        self._terminated = 0
        # Readable once a signal has come, which wakes the loop.
        self._wake = processes.open_wake_pipe()
        # Signals to pass on to the workers.
        self._warnings: list[int] = []
        for number in processes.HANDLED:
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """Serves the rendezvous until its end or the end of this process.

        Returns:
            The exit status: the job's, if it has said so; 128 + n if signal n
            asked this process to end; otherwise 1.
        """
        self._serve()
        if self._status is not None:
            return self._status
        if self._terminated:
            return 128 + self._terminated
        _say(self._configuration, "the launcher is gone")
        return 1

    def _serve(self) -> None:
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._wake):
            poll.register(descriptor, select.POLLIN)
        if self._configuration.get("has_lifeline", True):
            poll.register(0, select.POLLIN)
        while not (self._ending and not self._workers):
            # A bounded wait also bounds the cost of a lost wake-up.
            ready = {fd for fd, _ in poll.poll(self._wait_ms())}
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            if 0 in ready and not os.read(0, 4096):
                return
            try:
                if self._control.fileno() in ready:
                    while (message := self._control.receive(0)) is not None:
                        self._obey(message)
                self._reap()
                self._look_for_stopped(time.monotonic())
                while self._warnings:
                    self._signal_workers(self._warnings.pop(0))
                if self._terminated and not self._ending:
                    self._control.send({"kind": "leaving"})
                    self._signal_workers(signal.SIGTERM)
                    self._end(command_line.grace_seconds(self._environment))
            except wire.ChannelClosedError:
                return
            now = time.monotonic()
            for name, worker in self._workers.items():
                if now >= worker.kill_at:
                    worker.kill_at = now + 1.0
                    worker_process.kill(self._job, name, worker.process.pid)

    def close(self) -> None:
        """Kills all workers, and passes on their output."""
        processes.kill_descendants(grace_seconds=0.0)
        with contextlib.suppress(wire.ChannelClosedError):
            self._reap()
        # The killed workers have closed their ends of the pipes.
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        for forwarder in self._forwarders:
            forwarder.join(max(0.0, deadline - time.monotonic()))
        self._control.close()

    def _look_for_stopped(self, now: float) -> None:
        """Reports stopped workers: before `init` they have no pulse."""
        silence_seconds = self._configuration["silence_seconds"]
        for name, worker in self._workers.items():
            if not worker_process.is_stopped(worker.process.pid):
                worker.stopped_at = math.inf
                continue
            worker.stopped_at = min(worker.stopped_at, now)
            if now - worker.stopped_at >= silence_seconds:
                worker.stopped_at = math.inf
                self._control.send({"kind": "stopped", "worker": name})

    def _wait_ms(self) -> int:
        times = [worker.kill_at for worker in self._workers.values()]
        wait = min(times, default=math.inf) - time.monotonic()
        return int(1000 * max(0.0, min(wait, 1.0))) + 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in processes.FORWARDED:
            self._warnings.append(number)
        else:
            self._terminated = number

    def _signal_workers(self, number: int) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(number)

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "start" and not self._ending:
            self._start(message)
        elif kind == "share_cores":
            for worker in self._workers.values():
                worker.bind(self._cpus(worker.slot, message))
        elif kind == "signal":
            self._signal_workers(message["number"])
        elif kind == "kill" and message["worker"] in self._workers:
            self._workers[message["worker"]].kill_in(message["grace_seconds"])
        elif kind == "refused":
            _say(self._configuration, message["why"])
            self._status = 1
            self._ending = True
        elif kind == "end":
            self._status = message["status"]
            self._end(message["grace_seconds"])

    def _end(self, grace_seconds: float) -> None:
        self._ending = True
        for worker in self._workers.values():
            worker.kill_in(grace_seconds)

    def _cpus(self, slot: int, order: dict[str, Any]) -> set[int]:
        # A spare's slot is not among those that share the cores. The spare may
        # use all of them.
        return cpus_of_slot(
            order["first_slot"] + slot,
            order["cores_shared_by"],
            self._configuration.get("threads", 1),
        )

    def _start(self, order: dict[str, Any]) -> None:
        name = order["worker"]
        taken = {worker.slot for worker in self._workers.values()}
        slot = next(n for n in itertools.count() if n not in taken)
        cpus = self._cpus(slot, order)
        environment = {
            **self._environment,
            **order["environment"],
            "TFRING_ELASTIC_WORKER": name,
        }
        if "node" not in self._configuration:
            # Two supervisors of one machine would both number their slots from
            # 0.
            environment["TFRING_ELASTIC_SLOT"] = str(slot)
        process: subprocess.Popen[bytes] | None = None
        try:
            process = subprocess.Popen(
                self._configuration["command"],
                cwd=self._directory,
                env={**environment, **rank_wrapper.share_gpus(environment)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=functools.partial(worker_process.prepare, cpus),
            )
            forwarder = threading.Thread(
                target=self._forward, args=(name, process), daemon=True
            )
            forwarder.start()
        # RuntimeError: no further thread can be started.
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            if process is not None:
                process.kill()
                process.wait()
            self._report(name, 127, f"it cannot be started: {error}")
            return
        self._forwarders.append(forwarder)
        self._workers[name] = WorkerProcess(process, slot, cpus)

    def _forward(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Passes on a worker's output. Runs in a thread for each worker."""
        assert process.stdout is not None
        assert process.stderr is not None
        pipes = {1: process.stdout, 2: process.stderr}
        connected = True
        for stream, data in processes.pieces(pipes):
            if not data:
                pipes[stream].close()
            elif connected:
                message = {
                    "kind": "output",
                    "worker": name,
                    "stream": stream,
                    "data": data.decode("latin-1"),
                }
                try:
                    self._output.send(message)
                except OSError:
                    connected = False

    def _reap(self) -> None:
        """Reports the workers that have ended, and kills their leftovers."""
        ended = [
            (name, worker.process)
            for name, worker in self._workers.items()
            if worker.process.poll() is not None
        ]
        for name, process in ended:
            del self._workers[name]
            self._report(name, *worker_process.describe(process.returncode))
        for name, process in ended:
            worker_process.kill(self._job, name, process.pid)
        # Orphans of the workers, which this process has adopted.
        living = {worker.process.pid for worker in self._workers.values()}
        while (pid := processes.ended_child()) and pid not in living:
            os.waitpid(pid, 0)
        self._forwarders = [
            each for each in self._forwarders if each.is_alive()
        ]

    def _report(self, name: str, status: int, how: str) -> None:
        self._control.send(
            {"kind": "exited", "worker": name, "status": status, "how": how}
        )


def _say(configuration: dict[str, Any], text: str) -> None:
    # The launcher puts a host's name before the lines of its own supervisors.
    prefix = "tfringrun: " if "slots" in configuration else ""
    line = f"{prefix}{text.rstrip('.')}."
    print(line, file=sys.stderr, flush=True)


def _wait_and_clean(child: int) -> int:
    """Waits for the parent of the workers, and kills leftovers."""
    for number in processes.HANDLED:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            processes.kill_descendants(grace_seconds=0.0)
            return worker_process.describe(os.waitstatus_to_exitcode(status))[0]


def supervise(configuration: dict[str, Any]) -> int:
    """Runs a supervisor in a process of its own; returns its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    processes.adopt_orphans()
    parent = os.getpid()
    if (child := os.fork()) != 0:
        return _wait_and_clean(child)
    status = 1
    try:
        processes.end_with_parent()
        if os.getppid() == parent:
            processes.adopt_orphans()
            status = _supervise(configuration)
    except BaseException:
        traceback.print_exc()
    finally:
        # Only the other process returns from `supervise`.
        os._exit(status)


def _supervise(configuration: dict[str, Any]) -> int:
    try:
        supervisor = Supervisor(configuration)
    except OSError as error:
        _say(configuration, f"the launcher cannot be reached: {error}")
        return 1
    with contextlib.closing(supervisor):
        return supervisor.run()


def main() -> int:
    """Runs the supervisor of a host that the launcher has chosen."""
    return supervise(orders.read())


if __name__ == "__main__":
    sys.exit(main())

"""Runs an elastic job to its end, with its rules, sockets and supervisors."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from tfring.launcher import command_line, ending, processes, wrapper
from tfring.launcher.elastic.agents import Agent
from tfring.launcher.elastic.discovery import Discovery
from tfring.launcher.elastic.elastic_job import ElasticJob
from tfring.launcher.elastic.fixed_membership import FixedMembership
from tfring.launcher.elastic.host_table import HostTable
from tfring.launcher.elastic.membership import Membership
from tfring.launcher.elastic.screen import JobScreen
from tfring.launcher.elastic.server import Event, Server
from tfring.launcher.elastic.workers import Say
from tfring.launcher.hosts import slots_by_name
from tfring.launcher.output import View
from tfring.launcher.stages import Stage, Stages
from tfring.rendezvous import handshake
from tfring.rendezvous.wire import Listener

_TICK_SECONDS = 0.1
# A worker's last messages may arrive this much later than its supervisor's
# report of its end.
_LAST_MESSAGE_SECONDS = 1.0
# After a failure the workers have this long to end by themselves.
_FAILURE_GRACE_SECONDS = 3.0
# How long supervisors have after the grace of their workers.
_END_SECONDS = 10.0
_STAGE_OF_ACTION = {"start": Stage.STARTED, "form": Stage.JOINED}


class Driver:
    """One elastic job. Workers get its signals; a second SIGTERM kills it."""

    def __init__(
        self,
        job: ElasticJob,
        view: View,
        token: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Prepares the job.

        `token` and `listener` are for hosts that join by themselves: they have
        the token already, and connect to the listener, at `job.interface`.
        """
        self._job = job
        self._view = view
        self._stages = Stages()
        self._token = token or handshake.make_token()
        self._server = Server(self._token, job.silence_seconds)
        if listener is not None:
            self._server.take_over(listener)
        self._hosts = HostTable(time.monotonic)
        rules = Membership if job.limits.replaces else FixedMembership
        self._membership = rules(job.limits, self._hosts, time.monotonic)
        # The rank of each worker in the newest generation.
        self.ranks: dict[str, int] = {}
        # Reports of ended workers that were not taken yet: the latest time to
        # take the report, the host, and the report.
        self._exits: list[tuple[float, str, dict[str, Any]]] = []
        # The agent of each host, connected or not.
        self._agents: dict[str, Agent] = {}
        self._discovery = Discovery(job.script) if job.script else None
        self._screen = JobScreen(view)
        # Signals that were not handled yet.
        self._signals: list[int] = []
        self._stop_signal: int | None = None
        self._signalled_at = 0.0
        self._grace_seconds = command_line.grace_seconds(job.environment)
        self._killed = False

    @property
    def failed_worker(self) -> str | None:
        """The worker that failed first, in the latest failed generation."""
        first = self._membership.first_failure
        return None if first is None else first.name

    def stop(self) -> None:
        """Ends the job as SIGTERM does, unless the job has an outcome.

        Any thread may call it.
        """
        if self._membership.outcome is None:
            self._signals.append(signal.SIGTERM)
            self._server.wake()

    def run(self) -> int:
        """Runs the job; returns its exit status."""
        processes.adopt_orphans()
        with processes.signals_to(self._signals.append):
            try:
                if self._discovery is None:
                    self._hosts.update(slots_by_name(self._job.hosts))
                self._train()
                self._end()
                return self._status()
            finally:
                for agent in self._agents.values():
                    agent.kill()
                processes.kill_descendants(grace_seconds=0.0)
                self._server.close()
                if self._discovery is not None:
                    self._discovery.close()

    def _take_signals(self) -> None:
        while self._signals:
            number, now = self._signals.pop(0), time.monotonic()
            if number in processes.FORWARDED:
                self._signal_workers(number)
            elif self._stop_signal is None:
                self._stop_signal, self._signalled_at = number, now
            elif ending.is_second(number, now, self._signalled_at):
                self._killed = True

    def _signal_workers(self, number: int) -> None:
        hosts = self._server.connected("supervisor")
        message = {"kind": "signal", "number": number}
        self._server.send("supervisor", hosts, message)

    def _train(self) -> None:
        while self._membership.outcome is None and self._stop_signal is None:
            self._discover()
            self._start_supervisors()
            for event in self._poll():
                self._take(event)
            self._take_exits()
            self._look_after_agents()
            self._act()
            if self._screen.writer.errors:  # `tfringrun ... | head`.
                self._stop_signal = signal.SIGPIPE

    def _poll(self) -> list[Event]:
        self._take_signals()
        self._screen.tick()
        self._server.pause_output(self._screen.writer.is_full())
        return self._server.poll(_TICK_SECONDS)

    def _discover(self) -> None:
        if self._discovery is None:
            return
        before = self._discovery.error
        slots = self._discovery.poll(time.monotonic())
        if (error := self._discovery.error) not in ("", before):
            self._screen.say(
                f"{self._job.script}: {error}. The hosts stay as they are."
            )
        if slots is not None and self._hosts.update(slots):
            listed = ", ".join(f"{name}:{n}" for name, n in slots.items())
            self._screen.say(f"hosts: {listed or 'none'}.")

    def _start_supervisors(self) -> None:
        for host in self._hosts.missing():
            if host in self._agents:
                # The host was taken away, and is back before its supervisor has
                # ended.
                if self._server.is_connected("supervisor", host):
                    self._hosts.came_up(host)
                continue
            self._agents[host] = Agent(
                host, self._job, self._token, self._server.wake
            )

    def _look_after_agents(self) -> None:
        for host, agent in list(self._agents.items()):
            if self._server.is_connected("supervisor", host):
                unused = host not in self._hosts and not any(
                    worker.host == host
                    for worker in self._membership.workers.values()
                )
                if unused:
                    self._server.send("supervisor", [host], _end_message(5.0))
            elif why := agent.tick(self._server.listen):
                self._lose_host(host, f"host {host} cannot be reached: {why}")

    def _lose_host(self, host: str, why: str) -> None:
        if host in self._agents:
            self._agents.pop(host).kill()
        self._server.drop("supervisor", host)
        if host in self._hosts:
            self._screen.say(f"{why}.")
        self._membership.host_lost(host, why)

    def _take(self, event: Event) -> None:
        name, message = event.name, event.message
        self._note_stage(event)
        if event.role == "supervisor":
            self._take_of_supervisor(name, message)
        elif event.role == "output":
            if message is not None and message.get("kind") == "output":
                self._screen.take(
                    message["stream"],
                    _number(message["worker"]),
                    message["data"].encode("latin-1"),
                )
        elif message is None and event.role == "pulse":
            why = f"nothing was heard of it for {self._job.silence_seconds:g} s"
            self._membership.silent(name, why)
        elif message is None:
            self._membership.disconnected(name)
        elif message.get("kind") != "hello":
            try:
                self._membership.heard(name, message)
            except (KeyError, TypeError, ValueError) as error:
                why = f"it sent what is no message: {error!r}"
                self._membership.silent(name, why)
        elif name not in self._membership.workers:
            why = "the job does not know this worker, or has lost it"
            message = {"kind": "end", "status": 1, "why": why}
            self._server.send(event.role, [name], message)
            self._server.drop(event.role, name)

    def _note_stage(self, event: Event) -> None:
        has_joined = Stage.JOINED in self._stages
        match event.role, (event.message or {}).get("kind"):
            case "supervisor", "hello" if not has_joined:
                self._stages.reach(Stage.PREPARED)
            case "worker", "hello" if not has_joined:
                self._stages.reach(Stage.JOINING)
            case "worker", "bye":
                self._stages.reach(Stage.ENDING)
            case "supervisor", "exited":
                self._stages.reach(Stage.ENDED)

    def _take_of_supervisor(
        self, host: str, message: dict[str, Any] | None
    ) -> None:
        if message is None:
            self._take_exits(lost_host=host)
            self._lose_host(host, f"host {host} was lost")
        elif message["kind"] == "hello":
            if "slots" in message and host not in self._hosts:
                self._hosts.add(
                    host,
                    int(message["slots"]),
                    message.get("node"),
                    int(message.get("order", 0)),
                )
                if self._job.limits.replaces:
                    self._screen.say(f"host {host} has come.")
            self._hosts.came_up(host)
        elif message["kind"] == "leaving":
            self._hosts.leave(host)
        elif message["kind"] == "stopped":
            self._membership.silent(message["worker"], "it is stopped")
        elif message["kind"] == "exited":
            # Messages on the worker's own connection may arrive after this one.
            by = time.monotonic() + _LAST_MESSAGE_SECONDS
            self._exits.append((by, host, message))

    def _take_exits(self, lost_host: str | None = None) -> None:
        """Takes the ends of workers that will send nothing more."""
        now = time.monotonic()
        exits, self._exits = self._exits, []
        for by, host, message in exits:
            name = message["worker"]
            may_speak = self._server.is_connected("worker", name)
            if may_speak and now < by and host != lost_host:
                self._exits.append((by, host, message))
            else:
                self._membership.exited(name, message["status"], message["how"])

    def _act(self) -> None:
        for action in self._membership.take_actions():
            if isinstance(action, Say):
                if self._job.limits.replaces:  # If not, `failure` says why.
                    self._screen.say(action.text)
                continue
            kind = action.message["kind"]
            if Stage.JOINED not in self._stages and kind in _STAGE_OF_ACTION:
                self._stages.reach(_STAGE_OF_ACTION[kind])
            if kind == "form":
                self.ranks.clear()
                for rank, name in enumerate(action.names):
                    self._note_rank(name, rank)
            elif kind == "start":
                name = action.message["worker"]
                # A place that an engine has found is named "host/task".
                host = action.names[0].partition("/")[0]
                self._screen.hosts[_number(name)] = host
                if not self._job.limits.replaces:
                    self._note_rank(name, _number(name) - 1)
            self._server.send(action.role, action.names, action.message)

    def _note_rank(self, worker: str, rank: int) -> None:
        self.ranks[worker] = rank
        self._screen.prefixes[_number(worker)] = str(rank)

    def _end(self) -> None:
        stopped = self._stop_signal is not None
        grace = self._grace_seconds if stopped else _FAILURE_GRACE_SECONDS
        failure = self._membership.outcome
        workers = self._membership.workers
        if stopped:
            # At SIGTERM each worker asks whether it may leave. This is the
            # answer.
            self._server.send("worker", workers, {"kind": "leave"})
            self._ask_to_end()
        else:
            why = failure or "the job is over"
            message = {"kind": "end", "status": int(bool(failure)), "why": why}
            self._server.send("worker", workers, message)
            # Wait for the supervisor's report on the worker that failed first.
            first = self._membership.first_failure
            if failure:
                self._wait_for(
                    lambda: first is None or first.status is not None,
                    _LAST_MESSAGE_SECONDS,
                )
        message = _end_message(grace, self._status())
        self._server.send(
            "supervisor", self._server.connected("supervisor"), message
        )
        # An output connection ends when all output has arrived.
        roles = ("supervisor", "output")
        self._wait_for(
            lambda: not any(map(self._server.connected, roles)),
            grace + _END_SECONDS,
        )
        self._wait_for(lambda: not self._exits, _LAST_MESSAGE_SECONDS)
        first = self._membership.first_failure
        if first and failure:
            self._screen.failed = first.number
        self._stages.reach(Stage.OVER)
        if self._view.verbose:
            for line in self._stages.lines():
                self._screen.say(line)
        self._screen.close(explained=True)
        self._screen.end(
            self.failure() if self._job.shows_end else "",
            lambda: self._stop_signal is not None,
        )

    def _ask_to_end(self) -> None:
        assert self._stop_signal is not None
        is_interrupt = self._stop_signal == signal.SIGINT
        self._signal_workers(signal.SIGINT if is_interrupt else signal.SIGTERM)
        if (
            self._job.shows_end
            and self._grace_seconds > 0
            and self._stop_signal != signal.SIGPIPE
        ):
            self._screen.say(
                ending.announce(self._stop_signal, self._grace_seconds)
            )

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            if self._killed:
                return
            for event in self._poll():
                if event.role == "output" or (
                    event.role == "supervisor"
                    and (event.message or {}).get("kind") == "exited"
                ):
                    self._take(event)
            self._take_exits()

    def _status(self) -> int:
        if self._write_error() is not None:
            return 1
        if self._stop_signal is not None:
            return 128 + self._stop_signal
        if not self._membership.outcome:
            return 0
        first = self._membership.first_failure
        return (first.status if first else None) or 1

    def _write_error(self) -> tuple[int, OSError] | None:
        """Returns the stream that cannot be written and the error, or None."""
        for stream, error in self._screen.writer.errors.items():
            if not isinstance(error, BrokenPipeError):
                return stream, error
        return None

    def failure(self) -> str:
        """Returns why the job has failed, in lines; "" if it has not."""
        if (unwritten := self._write_error()) is not None:
            return ending.describe_write_error(*unwritten)
        failure = self._membership.outcome
        if self._stop_signal is not None or not failure:
            return ""
        first = self._membership.first_failure
        if first is None:
            return failure
        exception, last_line = self._screen.last_words(first.number)
        exception = first.error or exception
        who = f"worker {first.name}"
        if first.rank is not None:
            who = f"rank {first.rank}"
        if first.status is None:
            how = first.error or first.why
            end = f"{who} (host {first.host}) failed first: {how}."
        else:
            end = wrapper.describe(
                who, first.host, first.status, exception, last_line
            )
        return f"{failure}\n{end}" if self._job.limits.replaces else end


def _end_message(grace: float, status: int = 0) -> dict[str, Any]:
    return {"kind": "end", "grace_seconds": grace, "status": status}


def _number(worker: str) -> int:
    """Returns the number in a worker's name: 5 for `w5`."""
    return int(worker[1:])

"""Hosts on one machine: network namespaces with links of a bounded rate.

  with HostNetwork(4, rate="1gbit") as network:
      network.run([*TFRINGRUN, "-H", network.slots(2), "python", "train.py"])

Each host has a name, an address, processes and shared memory of its own. Files
and cores are the machine's. Jobs start on an extra host, the head. It has a
bridge to all links, and none of its own. The launcher reaches the others by an
agent in place of ssh.

It takes root. The hosts are removed when the network is closed, or when the
process that made it ends, for any reason.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tfring.launcher import processes

HEAD = "head"
_SUBNET = "10.83.0"
# A link address that no host has.
_NOBODY = "lladdr 02:00:00:00:00:01 nud permanent"

# The first process of a host: it ends with the host, and the host with it.
_HOLD = """\
set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo ready
exec sleep infinity
"""

# Called as ssh is: options, the host, the words of a command for its shell.
# It does not pass on the environment, as ssh does not.
_AGENT = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
case $host in
{cases}
*) echo "there is no host $host" >&2; exit 255 ;;
esac
exec nsenter --target $pid --net --uts --mount --pid \\
  env -i HOME="$HOME" PATH="$PATH" TMPDIR="{directory}/$host" sh -c "$*"
"""


def missing() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    for program in ("ip", "tc", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"there is no command {program} (Debian: iproute2)"
    try:
        with HostNetwork(1, rate="1gbit"):
            return None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip() or str(error)
        return f"network namespaces are not allowed here: {said}"


class HostNetwork:
    """Hosts with shaped links, in a `with` statement.

    Args:
        hosts: How many, named host1, host2, ...
        rate: The rate of each host's link, in each direction, as `tc` has it.

    Raises:
        subprocess.CalledProcessError: The kernel or its tools refuse; stderr
            says why.
    """

    def __init__(self, hosts: int, *, rate: str) -> None:
        self.hosts = [f"host{number}" for number in range(1, hosts + 1)]
        self._rate = rate
        self._addresses = {
            name: f"{_SUBNET}.{number}"
            for number, name in enumerate([HEAD, *self.hosts], start=1)
        }
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="host-network-"))
        self._agent = self._directory / "agent"

    def __enter__(self) -> HostNetwork:
        """Starts the hosts."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the hosts and all that runs on them."""
        self.close()

    def close(self) -> None:
        """Ends the hosts and all that runs on them."""
        for name in [*self._holders]:
            self.kill(name)
        shutil.rmtree(self._directory, ignore_errors=True)

    def slots(self, each: int) -> str:
        """The argument of `tfringrun -H`: all hosts, with `each` slots."""
        return ",".join(f"{name}:{each}" for name in self.hosts)

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
        host: str = HEAD,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Starts a command on a host; by default in this directory."""
        where = directory or Path.cwd()
        return subprocess.Popen(
            self._on(
                host, ["sh", "-c", 'cd "$0" && exec "$@"', where, *command]
            ),
            env={**os.environ, **self._launchers(), **(env or {})},
            **options,
        )

    def cut(self, host: str) -> None:
        """Takes the host's link down; it and its processes live on."""
        self._run_in(HEAD, f"ip link set {host} down")

    def mend(self, host: str) -> None:
        """Takes a link up that was cut."""
        self._run_in(HEAD, f"ip link set {host} up")

    def separate(self, one: str, other: str) -> None:
        """Drops all packets between two hosts, and no others."""
        for host, peer in ((one, other), (other, one)):
            neighbour = f"{self._addresses[peer]} {_NOBODY}"
            self._run_in(host, f"ip neighbour replace {neighbour} dev eth0")

    def reunite(self, one: str, other: str) -> None:
        """Has two hosts that were separated reach each other again."""
        for host, peer in ((one, other), (other, one)):
            neighbour = self._addresses[peer]
            self._run_in(host, f"ip neighbour del {neighbour} dev eth0")

    def processes(self, host: str) -> list[int]:
        """Returns the processes of a host, by this process's ids."""
        first = self._first_process(host)
        space = Path(f"/proc/{first}/ns/pid").readlink()
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = processes.stat_fields(each.name)[0]
                if (each / "ns/pid").readlink() == space and state != "Z":
                    found.append(int(each.name))
        return sorted({*found} - {first})

    def signal(self, host: str, number: int) -> None:
        """Sends a signal to all processes of a host at once.

        A process that is forked meanwhile gets it, too. `processes` would miss
        such a process, which then outlives its parent.
        """
        # The kernel signals all of the PID namespace, except its first process.
        # The command fails if there is no other process.
        command = ["sh", "-c", f"kill -s {number:d} -- -1"]
        subprocess.run(
            self._on(host, command), check=False, capture_output=True
        )

    def temporary_files(self) -> list[Path]:
        """Returns all files in the hosts' temporary folders."""
        folders = [self._directory / host for host in self.hosts]
        return [path for each in folders for path in each.rglob("*")]

    def proc(self, host: str) -> Path:
        """The first process of a host, or of the head, in /proc."""
        return Path(f"/proc/{self._first_process(host)}")

    def kill(self, host: str) -> None:
        """Ends a host with all its processes at once, with no shutdown."""
        holder = self._holders.pop(host)
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()

    def _launchers(self) -> dict[str, str]:
        """Settings that make an MPI launcher use the agent in place of ssh."""
        return {
            "PRTE_MCA_plm_ssh_agent": str(self._agent),  # Open MPI 5
            "OMPI_MCA_plm_rsh_agent": str(self._agent),  # Open MPI 4
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self._agent),
        }

    def _start(self) -> None:
        table = self._directory / "hosts"
        table.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{ip} {name}\n" for name, ip in self._addresses.items())
        )
        self._hold(HEAD, table)
        for name in self.hosts:
            # Processes of two hosts may have the same number.
            (self._directory / name).mkdir()
            self._hold(name, table, "--pid", "--mount-proc")
        self._run_in(
            HEAD,
            "ip link add bridge type bridge",
            f"ip address add {self._addresses[HEAD]}/24 dev bridge",
            "ip link set bridge up",
        )
        for name in self.hosts:
            self._link(name)
        cases = (
            f"{name}) pid={self._first_process(name)} ;;" for name in self.hosts
        )
        self._agent.write_text(
            _AGENT.format(cases="\n".join(cases), directory=self._directory)
        )
        self._agent.chmod(0o755)

    def _hold(self, name: str, table: Path, *namespaces: str) -> None:
        holder = subprocess.Popen(
            [
                *("unshare", "--net", "--uts", "--mount", *namespaces),
                *("--fork", "--kill-child"),
                *("sh", "-c", _HOLD, "hold", name, str(table)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=functools.partial(
                processes.end_with_parent, signal.SIGKILL
            ),
        )
        self._holders[name] = holder
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            _, said = holder.communicate()
            raise subprocess.CalledProcessError(
                holder.returncode, holder.args, stderr=said
            )

    def _first_process(self, name: str) -> int:
        pid = self._holders[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return int(children.split()[0])

    def _link(self, name: str) -> None:
        first, address = self._first_process(name), self._addresses[name]
        # The kernel sends up to 256 KiB in one piece: a smaller burst would
        # hold it back, and reduce the rate.
        shape = f"root tbf rate {self._rate} burst 256k limit 8m"
        self._run_in(
            HEAD,
            f"ip link add {name} type veth peer name eth0 netns {first}",
            f"ip link set {name} master bridge up",
            f"tc qdisc add dev {name} {shape}",
        )
        # Linux's default, whatever this machine's is: BBR leaves a link idle
        # now and then, by design, and a ring waits wherever one link does.
        route = f"{_SUBNET}.0/24 dev eth0 src {address} congctl cubic"
        self._run_in(
            name,
            f"ip address add {address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route replace {route}",
            f"tc qdisc add dev eth0 {shape}",
        )

    def _run_in(self, host: str, *commands: str) -> None:
        """Runs commands in the network of a host, with this one's files."""
        inside = ["nsenter", f"--target={self._first_process(host)}", "--net"]
        for command in commands:
            subprocess.run(
                [*inside, *shlex.split(command)],
                check=True,
                capture_output=True,
                text=True,
            )

    def _on(self, host: str, command: Sequence[str | Path]) -> list[str]:
        spaces = ["--net", "--uts", "--mount"]
        if host != HEAD:
            spaces.append("--pid")
        return [
            *("nsenter", f"--target={self._first_process(host)}", *spaces),
            *map(str, command),
        ]

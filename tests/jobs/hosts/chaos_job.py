"""A job on several hosts, with its records, its results and its leftovers."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from elastic_launches import Records
from jobs import FORGIVING_TFRINGRUN, listening

from host_network import HEAD

SCRIPT = Path(__file__).parents[1] / "elastic_training.py"
# A longer wait is a hang.
PATIENCE_SECONDS = 400


def write_hosts(folder, slots):
    """Writes the hosts that the script, `cat FOLDER/hosts`, prints."""
    lines = [f"{host}:{number}\n" for host, number in slots.items() if number]
    draft = folder / ".hosts"
    draft.write_text("".join(lines))
    draft.rename(folder / "hosts")


# In the head's network, where nobody has it.
_SILENT = "10.83.0.250"
_WITHOUT_NAMES = f"""
echo nameserver {_SILENT} >"$0"
mount --bind "$0" /etc/resolv.conf
ip neighbour add {_SILENT} lladdr 02:00:00:00:00:01 nud permanent dev bridge
"""


def silence_names(network, folder):
    """Has no name server answer on the head."""
    words = ["sh", "-ec", _WITHOUT_NAMES, folder / "resolv.conf"]
    process = network.popen(words)
    assert process.wait() == 0


class ChaosJob:
    """A job over TCP on the hosts of a network, in a folder of its own."""

    def __init__(self, network, folder, options, *training):
        self.network = network
        self.folder = folder
        self.marker = f"TFRING_TEST_MARKER={uuid.uuid4().hex}"
        for name in ("progress", "faults", "work"):
            (folder / name).mkdir()
        self.records = Records(folder / "progress")
        name, _, value = self.marker.partition("=")
        (folder / "tmp").mkdir()
        silence_names(network, folder)
        # The discovery script's number of slots for each host.
        self.slots = {}
        if (folder / "hosts").exists():
            lines = (folder / "hosts").read_text().splitlines()
            pairs = (line.split(":") for line in lines)
            self.slots = {host: int(number) for host, number in pairs}
        self.process = network.popen(
            [
                *(*FORGIVING_TFRINGRUN, "--elastic", *options),
                *(sys.executable, SCRIPT, folder, *training),
            ],
            directory=folder / "work",
            env={
                name: value,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TMPDIR": str(folder / "tmp"),
                # A job that hangs fails after this time.
                "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "20",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.began = time.monotonic()
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write_hosts(self, slots):
        """Makes the discovery script print these hosts."""
        write_hosts(self.folder, slots)

    def _read(self):
        for line in self.process.stdout:
            self.say(line)

    def say(self, line):
        at = f"{time.monotonic() - self.began:7.2f} "
        self.lines.append(at + line.rstrip("\n") + "\n")

    def output(self):
        return "".join(self.lines)

    def workers(self):
        """By name: the processes, by the numbers that they have here."""
        found = {}
        for host in self.network.hosts:
            for pid in self.network.processes(host):
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if os.fsencode(SCRIPT) not in line.split(b"\0"):
                        continue
                    match = re.search(
                        rb"TFRING_ELASTIC_WORKER=(\w+)",
                        Path(f"/proc/{pid}/environ").read_bytes(),
                    )
                    if match:
                        found[match[1].decode()] = (host, pid)
        return found

    def wait_for(self, condition, what, seconds=PATIENCE_SECONDS):
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended: {self.story()}"
            assert time.monotonic() < end, f"no {what}: {self.story()}"
            time.sleep(0.05)

    def story(self):
        """Returns the folder and the output; writes the output to a file."""
        (self.folder / "story").write_text(self.output())
        return f"{self.folder}\n{self.output()}"

    def finish(self, seconds=PATIENCE_SECONDS):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end: {self.story()}") from None
        self._reader.join(10)
        return self.process.returncode

    def kill(self):
        """Kills the launcher if it is left after a failure."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def results(self):
        return [
            json.loads(text)
            for text in re.findall(r" result (\{.*\})$", self.output(), re.M)
        ]

    def left_behind(self):
        """Processes, ports, files and shared memory that are still there."""
        left = []
        for host in self.network.hosts:
            for pid in self.network.processes(host):
                with contextlib.suppress(OSError):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                    left.append((host, pid, line))
        for name in (HEAD, *self.network.hosts):
            proc = self.network.proc(name)
            left += [(name, *each) for each in listening(proc)]
            shared = proc / "root/dev/shm"
            left += [(name, path) for path in shared.iterdir()]
        for pid in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_its = self.marker.encode() in (pid / "environ").read_bytes()
                if is_its and (pid / "cmdline").read_bytes():
                    left.append(pid)
        for name in ("work", "tmp"):
            left += (self.folder / name).rglob("*")
        left += self.network.temporary_files()
        return left

    def wait_until_nothing_is_left(self, seconds=15):
        end = time.monotonic() + seconds
        while left := self.left_behind():
            assert time.monotonic() < end, f"{left}: {self.story()}"
            time.sleep(0.1)

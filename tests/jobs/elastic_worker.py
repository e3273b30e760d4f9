"""A worker of an elastic job that trains nothing, and needs no TensorFlow.

It counts steps, from the newest count of its generation. Each worker's life can
be made worse by its name: `w2:raise:10` raises at its tenth step, `kill` has it
killed, `stop` stopped, `exit` exit with status 3, `quit` exit with 0, `fork`
leave a child behind and be killed, `term` leave politely; `w2:never:0` does not
join at all, and `w2:early:0` is stopped before it does. All may `--talk` much,
or `--chat` at each step, and end when there is a file `--until`.
"""

import argparse
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tfring.rendezvous import wire

NAME = os.environ["TFRING_ELASTIC_WORKER"]
TOKEN = os.environ["TFRING_ELASTIC_TOKEN"]
HOST, _, PORT = os.environ["TFRING_ELASTIC_RENDEZVOUS"].rpartition(":")
INTERFACE = os.environ["TFRING_ELASTIC_INTERFACE"]


def connect(role):
    hello = {
        "role": role,
        "worker": NAME,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    return wire.connect((HOST, int(PORT)), TOKEN, hello)


def beat(sock):
    with contextlib.suppress(OSError):
        while True:
            sock.send(b".")
            time.sleep(0.2)


class Worker:
    def __init__(self, options):
        self.options = options
        self.listener = wire.Listener(INTERFACE, TOKEN)
        self.channel = wire.Channel(connect("worker"))
        threading.Thread(
            target=beat, args=(connect("pulse"),), daemon=True
        ).start()
        self.steps = -1
        self.done_here = 0
        self.plan = {}
        for entry in options.fault:
            name, what, step = entry.split(":")
            if name == NAME:
                self.plan[int(step)] = what

    def ready(self, generation, building=False):
        self.channel.send(
            {
                "kind": "ready",
                "generation": generation,
                "address": self.listener.address,
                "steps": self.steps,
                "building": building,
            }
        )

    def receive(self, seconds):
        try:
            message = self.channel.receive(seconds)
        except wire.ChannelClosedError:
            print("the launcher is gone", flush=True)
            sys.exit(1)
        if message is not None and message["kind"] == "end":
            print(f"end: {message['why']}", flush=True)
            os._exit(message["status"])
        if message is not None and message["kind"] == "probe":
            reached = [name for name, _, _ in message["workers"]]
            self.channel.send({"kind": "probed", "reached": reached})
        return message

    def fault(self):
        what = self.plan.get(self.done_here, "")
        if what in ("kill", "fork"):
            if what == "fork":
                subprocess.Popen(
                    ["sleep", "1000"],
                    start_new_session=True,
                )
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "exit":
            os._exit(3)
        elif what == "quit":
            os._exit(0)
        elif what == "raise":
            self.channel.send({"kind": "error", "text": "ValueError: boom"})
            raise ValueError("boom")
        elif what == "term":
            self.leave()

    def leave(self):
        self.channel.send({"kind": "leaving"})
        while (message := self.receive(math.inf))["kind"] != "leave":
            if message["kind"] == "stay":
                return
        sys.exit(0)

    def bye(self):
        self.channel.send({"kind": "bye", "status": 0})
        sys.exit(0)

    def run(self):
        generation = 0
        self.ready(generation, building=True)
        while True:
            message = self.receive(math.inf)
            if message["kind"] == "build":
                print("builds while the others train", flush=True)
                self.ready(generation)
            if message["kind"] != "form":
                continue
            generation = message["generation"]
            members = message["members"]
            newest = max(member["steps"] for member in members)
            assert members[0]["steps"] == newest, members
            rank = [each["worker"] for each in members].index(NAME)
            # Before the line: a test that reads it knows that the launcher
            # has this message.
            self.channel.send({"kind": "formed", "generation": generation})
            print(
                f"generation {generation}: rank {rank} of "
                f"{len(members)}, from step {newest}",
                flush=True,
            )
            self.steps = max(newest, 0)
            if self.train(len(members)):
                self.bye()
            self.ready(generation)

    def talk(self):
        line = "x" * 100 + "\n"
        for _ in range(self.options.talk // len(line)):
            sys.stdout.write(line)
        sys.stdout.flush()
        self.options.talk = 0

    def train(self, size):
        """Returns True if the training has ended."""
        while self.steps < self.options.steps or size < self.options.size:
            message = self.receive(0.02)
            if message is not None:
                return False
            self.steps += 1
            self.done_here += 1
            self.fault()
            if self.options.chat:
                print(self.steps, flush=True)
            if self.options.until and Path(self.options.until).exists():
                break
        self.talk()
        # All workers have finished, as far as this worker can tell.
        return self.receive(0.3) is None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--talk", type=int, default=0)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--until", default="")
    parser.add_argument("--fault", action="append", default=[])
    options = parser.parse_args()
    if f"{NAME}:never:0" in options.fault:
        time.sleep(1000)
    if f"{NAME}:early:0" in options.fault:
        os.kill(os.getpid(), signal.SIGSTOP)
    Worker(options).run()


if __name__ == "__main__":
    main()

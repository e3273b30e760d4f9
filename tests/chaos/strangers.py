"""Connects to every port of a job as programs outside the job do.

    strangers.py FOLDER SEED

`FOLDER/ports` has a line for each port: its address, number and listener. A
connection sends garbage, another job's token, or the token of this job (read
from standard input) with an old generation. The script ends with the job, and
fails if one of its connections is not closed.
"""

import contextlib
import random
import secrets
import socket
import sys
import time
from pathlib import Path

from tfring.rendezvous import handshake, wire

# Hosts may be frozen and links cut for some of this time. A worker with a hung
# Python is detected after 20 s, and has 30 s to leave its generation.
_SECONDS = 90
# A greeting, and the reason to hang up.
_WORDS_BYTES = handshake.NONCE_BYTES + max(
    len(handshake.BUSY), len(handshake.NO_DESCRIPTORS)
)


def is_closed(sock, may_come):
    """Returns True if the peer closes it after at most `may_come` bytes."""
    sock.settimeout(_SECONDS)
    came = b""
    try:
        while more := sock.recv(4096):
            came += more
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return len(came) <= may_come


def send_garbage(address, dice):
    text = dice.choice(
        [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(200), dice.randbytes(100_000)]
    )
    with socket.create_connection(address, _SECONDS) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(text)
        return is_closed(sock, _WORDS_BYTES)


def connect_with_another_token(address):
    try:
        wire.connect(address, secrets.token_hex(32), {"role": "worker"}).close()
    except ConnectionError:
        return True
    return False


def connect_as_of_old(address, token, worker):
    """Connects as a member of the generation before the first."""
    hello = {
        **{"role": "data", "generation": 0, "channel": "world/1", "rank": 1},
        **{"worker": "w999", "to": worker},
    }
    with wire.connect(address, token, hello) as sock:
        return is_closed(sock, 0)


def main():
    folder, dice = Path(sys.argv[1]), random.Random(sys.argv[2])
    token = sys.stdin.readline().strip()
    tried = 0
    while not (folder / "enough").exists():
        for line in (folder / "ports").read_text().splitlines():
            host, port, worker = line.split()
            address = host, int(port)
            how = dice.choice(["garbage", "another token", "of old"])
            try:
                match how:
                    case "garbage":
                        refused = send_garbage(address, dice)
                    case "another token":
                        refused = connect_with_another_token(address)
                    case _:
                        refused = connect_as_of_old(address, token, worker)
            except OSError:
                continue  # It is lost, or its link is cut.
            assert refused, (how, line)
            tried += 1
        time.sleep(0.1)
    print(f"refused {tried}")


if __name__ == "__main__":
    main()

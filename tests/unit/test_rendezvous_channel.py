"""Messages on a connection of an elastic job."""

import contextlib
import fcntl
import json
import math
import socket
import struct
import termios
import threading

import pytest
from waiting import wait_until

from tfring.rendezvous import frames, wire

# A longer wait is a hang, even on a busy machine.
SECONDS = 60


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield wire.Channel(ours), theirs
    theirs.close()


@pytest.mark.parametrize(
    "data",
    [
        frames.encode(b"not JSON"),
        frames.encode(b"[1]"),
        frames.encode(b""),
        struct.pack(">I", wire.MESSAGE_BYTES + 1),
        b"\xff" * 100,
    ],
    ids=range(5),
)
def test_a_channel_ends_with_garbage(pair, data):
    channel, theirs = pair
    theirs.sendall(data)
    for _ in range(2):
        with pytest.raises(wire.ChannelClosedError):
            channel.receive(SECONDS)
    channel.close()


def test_a_channel_ends_in_the_middle_of_a_message(pair):
    channel, theirs = pair
    theirs.sendall(frames.encode(json.dumps({"a": 1}).encode())[:-2])
    assert channel.receive(0) is None
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(wire.ChannelClosedError):
        channel.receive(SECONDS)


def test_a_peer_that_takes_nothing_is_given_up(pair):
    channel, _ = pair

    def send_much():
        for _ in range(10_000):
            channel.send({"x": "y" * 10_000}, timeout_seconds=0.1)

    with pytest.raises(wire.ChannelClosedError, match="taken"):
        send_much()
    with pytest.raises(wire.ChannelClosedError):
        channel.send({})


def has_unread_bytes(channel):
    return fcntl.ioctl(channel, termios.FIONREAD, bytes(4)) != bytes(4)


def test_shutdown_wakes_the_thread_that_receives(pair):
    channel, theirs = pair
    ended = threading.Event()

    def receive():
        with contextlib.suppress(wire.ChannelClosedError):
            channel.receive(math.inf)
            return
        ended.set()

    thread = threading.Thread(target=receive)
    thread.start()
    theirs.sendall(b"\0")
    wait_until(lambda: not has_unread_bytes(channel))
    channel.shutdown()
    thread.join(SECONDS)
    assert ended.is_set()
    channel.close()


def test_messages_of_several_threads_do_not_mix(pair):
    channel, theirs = pair
    receiver = wire.Channel(theirs)
    text = "x" * 50_000

    def send(sender):
        for number in range(50):
            message = {"sender": sender, "number": number, "text": text}
            channel.send(message, SECONDS)

    threads = [threading.Thread(target=send, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    got = [receiver.receive(SECONDS) for _ in range(150)]
    for thread in threads:
        thread.join()
    for sender in range(3):
        numbers = [m["number"] for m in got if m["sender"] == sender]
        assert numbers == list(range(50))
    channel.close()

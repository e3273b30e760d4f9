"""Messages of the rendezvous to its workers."""

import math
import socket
import threading

import pytest

from tfring.launcher.elastic.launcher_channels import Output
from tfring.launcher.elastic.server import Server
from tfring.rendezvous import frames, wire
from tfring.rendezvous.handshake import make_token

TOKEN = make_token()


@pytest.fixture
def server():
    made = Server(TOKEN, silence_seconds=math.inf)
    yield made
    made.close()


def join(server, count):
    """Returns the workers' ends of `count` connections."""
    address, channels = server.listen("127.0.0.1"), []

    def connect():
        for number in range(count):
            hello = {"role": "worker", "worker": f"w{number}"}
            channels.append(
                wire.Channel(wire.connect(address, TOKEN, hello, 60))
            )

    thread = threading.Thread(target=connect)
    thread.start()
    while not all(server.is_connected("worker", f"w{i}") for i in range(count)):
        assert not [e for e in server.poll(0.1) if e.message is None]
    thread.join(60)
    return channels


def test_another_thread_ends_a_wait(server):
    thread = threading.Thread(target=server.wake)
    thread.start()
    assert server.poll(3600) == []
    thread.join(60)
    # The wake-up counts once.
    [channel] = join(server, 1)
    channel.close()
    [gone] = server.poll(3600)
    assert gone.message is None


def test_a_message_for_all_is_encoded_once(server, monkeypatch):
    channels = join(server, 5)
    encoded = []
    to_json = frames.to_json
    monkeypatch.setattr(
        frames, "to_json", lambda each: encoded.append(each) or to_json(each)
    )
    message = {"kind": "form", "members": list(range(1000))}
    server.send("worker", [f"w{i}" for i in range(5)], message)
    assert encoded == [message]
    for channel in channels:
        assert channel.receive(60) == message
        channel.close()


def test_a_message_that_is_not_taken_at_once_follows(server):
    [channel] = join(server, 1)
    # The buffer of a slow network.
    server._connections["worker", "w0"].sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
    )
    messages = [{"number": i, "text": "x" * (1 << 19)} for i in range(3)]
    for message in messages:
        server.send("worker", ["w0"], message)
    for message in messages:
        while (received := channel.receive(0)) is None:
            assert server.poll(0.01) == []
        assert received == message
    assert server.poll(0) == []
    channel.close()


def test_output_goes_on_by_another_connection(server, monkeypatch):
    """A cut link ends the first connection; either side may notice it."""
    address, came = server.listen("127.0.0.1"), []

    def take():
        came.extend(
            event.message["number"]
            for event in server.poll(0.01)
            if event.message and "number" in event.message
        )

    def in_a_thread(call, *args):
        """Runs a call while the server polls."""
        results = []
        thread = threading.Thread(target=lambda: results.append(call(*args)))
        thread.start()
        while thread.is_alive():
            take()
        return results[0]

    def closed(message, timeout_seconds):
        raise wire.ChannelClosedError

    output = in_a_thread(Output, address, TOKEN, "a")
    for number in range(40):
        output.send({"number": number})
    # The launcher does not notice; it has yet to read earlier messages.
    monkeypatch.setattr(output._channel, "send", closed)
    in_a_thread(output.send, {"number": 40})
    while 40 not in came:
        take()
    assert came == list(range(41))
    # The launcher drops the connection; only messages in flight are lost.
    server.drop("output", "a")
    while len(came) == 41:
        in_a_thread(output.send, {"number": 41})
    assert set(came[41:]) == {41}

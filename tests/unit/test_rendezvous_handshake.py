"""The proofs of a handshake, by bytes alone."""

import pytest

from tfring.rendezvous import frames, handshake

TOKEN = handshake.make_token()
HELLO = {"role": "worker", "worker": "w1"}


def test_a_proof_does_not_serve_the_other_side():
    # A stranger connects, and sends back the proof of the accepting side.
    accepting_side = handshake.Accepting(TOKEN)
    connecting = handshake.Connecting(TOKEN, HELLO)
    frame = connecting.answer(accepting_side.greeting)
    proof = accepting_side.feed(frame)
    connecting.check(proof)
    with pytest.raises(handshake.HandshakeError):
        connecting.check(frame[36:68])
    swapped = frames.encode(frame[4:36] + proof + frame[68:])
    other = handshake.Accepting(TOKEN)
    other.greeting = accepting_side.greeting
    with pytest.raises(handshake.HandshakeError):
        other.feed(swapped)


@pytest.mark.parametrize(
    "hello",
    [b"", b"[]", b"\xff", b"{", b"[" * 60_000, b"1" * 60_000, b'{"a":NaN'],
    ids=range(7),
)
def test_a_hello_that_is_no_object_is_an_error_even_with_the_token(hello):
    key = bytes.fromhex(TOKEN)
    accepting_side = handshake.Accepting(TOKEN)
    proof = handshake._proof(
        key, b"tfring connect", accepting_side.greeting, bytes(32), hello
    )
    with pytest.raises(ConnectionError, match="no JSON"):
        accepting_side.feed(frames.encode(bytes(32) + proof + hello))


def test_nothing_may_follow_a_hello_before_the_proof_has_come():
    accepting_side = handshake.Accepting(TOKEN)
    frame = handshake.Connecting(TOKEN, HELLO).answer(accepting_side.greeting)
    with pytest.raises(handshake.HandshakeError, match="more came"):
        accepting_side.feed(frame + b"x")


@pytest.mark.parametrize("token", ["", "ab", "x" * 64, "a" * 62])
def test_a_token_is_256_bits(token):
    with pytest.raises(ValueError, match="token"):
        handshake.Accepting(token)


def test_a_hello_is_bounded():
    with pytest.raises(ValueError, match="bytes"):
        handshake.Connecting(TOKEN, {"x": "y" * handshake.HELLO_BYTES})

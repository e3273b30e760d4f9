"""Proof that both ends of a connection have the same token; no sockets here.

The side that accepts sends a nonce. The side that connects answers with one
frame: a nonce of its own, an HMAC-SHA256 of both nonces and of its hello, and
the hello, which is JSON. The side that accepts proves itself by an HMAC of its
own, or closes the connection. Each HMAC covers its direction and both nonces,
so that a proof is valid once and in one direction. A busy listener sends a
fixed word instead of its nonce or its proof, and its peer tries again.

The rest of the connection is neither encrypted nor signed: the network between
the hosts of a job is trusted not to alter it.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from tfring.rendezvous import frames

TOKEN_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
# The last words of an overloaded listener, as long as a nonce or a proof.
BUSY = b"tfring: busy".ljust(PROOF_BYTES)
NO_DESCRIPTORS = b"tfring: no descriptors".ljust(PROOF_BYTES)
_MEANING = {
    BUSY: "too many connections come at once.",
    NO_DESCRIPTORS: (
        "the process there has no descriptor left: raise its limit of open "
        "files (`ulimit -n`, also the hard one)."
    ),
}
# The longest hello. It is limited because anyone may send one.
HELLO_BYTES = 64 << 10


class HandshakeError(ConnectionError):
    """The peer is not of this job, or breaks the protocol."""


class BusyError(ConnectionError):
    """The peer is too busy to shake hands; it may be of this job."""


def make_token() -> str:
    """Returns a token for a new job: 256 random bits, in hex."""
    return secrets.token_hex(TOKEN_BYTES)


def key_of(token: str) -> bytes:
    """Returns the bytes of a token.

    Raises:
        ValueError: The token is not 256 bits in hex.
    """
    try:
        key = bytes.fromhex(token)
    except ValueError:
        key = b""
    if len(key) != TOKEN_BYTES:
        raise ValueError(
            f"a job's token has {TOKEN_BYTES} bytes in hex, and this one has "
            f"{len(token)} characters."
        )
    return key


def _check_not_busy(word: bytes) -> None:
    if word in _MEANING:
        raise BusyError(_MEANING[word])


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


class Connecting:
    """The side that connects."""

    def __init__(self, token: str, hello: dict[str, Any]) -> None:
        """Prepares a connection's handshake; the hello says who connects.

        Raises:
            ValueError: The token is invalid, or the hello is too long.
        """
        self._key = key_of(token)
        self._hello = frames.to_json(hello)
        if len(self._hello) > HELLO_BYTES:
            raise ValueError(
                f"a hello of {len(self._hello)} bytes; {HELLO_BYTES} fit."
            )
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._server_nonce = b""

    def answer(self, greeting: bytes) -> bytes:
        """Returns what to send in answer to the listener's nonce.

        Raises:
            BusyError: The listener is busy, and has sent no nonce.
        """
        _check_not_busy(greeting)
        self._server_nonce = greeting
        proof = _proof(
            self._key, b"tfring connect", greeting, self._nonce, self._hello
        )
        return frames.encode(self._nonce + proof + self._hello)

    def check(self, proof: bytes) -> None:
        """Checks the peer's proof.

        Raises:
            BusyError: The listener is busy, and has sent no proof.
            HandshakeError: The listener does not have the token.
        """
        _check_not_busy(proof)
        expected = _proof(
            self._key,
            b"tfring accept",
            self._nonce,
            self._server_nonce,
            self._hello,
        )
        if not hmac.compare_digest(proof, expected):
            raise HandshakeError(
                "who listens there does not have the token of this job."
            )


class Accepting:
    """The side that accepts.

    Attributes:
        greeting: The bytes to send first.
        hello: The peer's hello, once `feed` has returned a proof.
    """

    def __init__(self, token: str) -> None:
        """Prepares the one handshake of a connection."""
        self._key = key_of(token)
        self.greeting = secrets.token_bytes(NONCE_BYTES)
        self.hello: dict[str, Any] = {}
        self._frames = frames.Decoder(NONCE_BYTES + PROOF_BYTES + HELLO_BYTES)

    def feed(self, data: bytes) -> bytes | None:
        """Takes bytes; returns the proof to send once the hello has come.

        Raises:
            HandshakeError: The peer does not have the token, or sends more than
                a hello.
            ConnectionError: The message is no hello.
        """
        self._frames.feed(data)
        if (frame := self._frames.next()) is None:
            return None
        if self._frames.has_more():
            raise HandshakeError("more came than a hello.")
        nonce = frame[:NONCE_BYTES]
        proof = frame[NONCE_BYTES : NONCE_BYTES + PROOF_BYTES]
        hello = frame[NONCE_BYTES + PROOF_BYTES :]
        expected = _proof(
            self._key, b"tfring connect", self.greeting, nonce, hello
        )
        if not hmac.compare_digest(proof, expected):
            raise HandshakeError("who connects does not have the job's token.")
        # Decode the hello only now that the proof is checked.
        self.hello = frames.from_json(hello)
        return _proof(self._key, b"tfring accept", nonce, self.greeting, hello)

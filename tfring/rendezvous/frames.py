"""Frames on a connection: four bytes of length, and JSON; no sockets here."""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")


def encode(payload: bytes) -> bytes:
    """Returns the frame of a payload."""
    return _LENGTH.pack(len(payload)) + payload


def to_json(message: dict[str, Any]) -> bytes:
    """Returns a message's bytes."""
    return json.dumps(message, separators=(",", ":")).encode()


def from_json(payload: bytes) -> dict[str, Any]:
    """Reads a message.

    Raises:
        ConnectionError: The payload is not a JSON object.
    """
    try:
        message = json.loads(payload)
    # Thousands of brackets cause a RecursionError.
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"a message that is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise ConnectionError("a message that is no JSON object.")
    return message


class Decoder:
    """Cuts the bytes of a connection into frames."""

    def __init__(self, longest_bytes: int) -> None:
        """Accepts payloads of at most `longest_bytes`."""
        self._longest_bytes = longest_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Takes bytes as they arrive."""
        self._data += data

    def next(self) -> bytes | None:
        """Returns the payload of the next frame; None if it is incomplete.

        Raises:
            ConnectionError: The frame is longer than allowed.
        """
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > self._longest_bytes:
            raise ConnectionError(
                f"a frame of {length} bytes; at most {self._longest_bytes} are "
                "expected."
            )
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        payload = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        return payload

    def has_more(self) -> bool:
        """Tells whether bytes are left."""
        return bool(self._data)

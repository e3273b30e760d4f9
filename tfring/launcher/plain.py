"""Lines for a file, from what was written for a terminal.

A progress bar rewrites its line: with carriage returns, backspaces and
terminals' control sequences. In a file its last state is a line, and the states
on the way are one each some seconds.
"""

from __future__ import annotations

import re

# How often a bar that moves gets a line.
SNAPSHOT_SECONDS = 10.0

_TERMINAL_ONLY = re.compile(rb"[\r\b\x1b]")
_REWRITES = re.compile(rb"\r(?!\n)|[\b]")
# A control sequence of ECMA-48, a colour for example; or a character.
_SEQUENCE_OR_CHARACTER = re.compile(r"\x1b\[([0-?]*[ -/]*[@-~])|(.)", re.DOTALL)


def is_rewritten(text: bytes) -> bool:
    """Tells if a line, finished or not, writes over what it wrote."""
    return _REWRITES.search(text) is not None


def text_of(text: bytes) -> bytes:
    """The line as a terminal would show it in the end."""
    if not _TERMINAL_ONLY.search(text):
        return text
    end = b"\n" if text.endswith(b"\n") else b""
    shown, _ = _screen_line(text.removesuffix(b"\n"))
    # Shorter states of a bar are padded, to cover longer ones.
    return shown.rstrip(" ").encode(errors="surrogateescape") + end


def abridge(text: bytes) -> bytes:
    """A shorter text that leaves a terminal's line, and its cursor, as `text`.

    For a line that is not finished.
    """
    shown, cursor = _screen_line(text)
    shorter = "\r" + shown + "\b" * (len(shown) - cursor)
    return shorter.encode(errors="surrogateescape")


def _screen_line(text: bytes) -> tuple[str, int]:
    """The characters of a terminal's line, and where its cursor is."""
    line: list[str] = []
    cursor = 0
    decoded = text.decode(errors="surrogateescape")
    for found in _SEQUENCE_OR_CHARACTER.finditer(decoded):
        sequence, character = found.groups()
        if sequence in ("K", "0K"):
            del line[cursor:]
        elif sequence == "2K":
            line[:] = " " * cursor
        elif character == "\r":
            cursor = 0
        elif character == "\b":
            cursor = max(0, cursor - 1)
        elif character is not None:
            line[cursor : cursor + 1] = character
            cursor += 1
    return "".join(line), cursor

"""Finds the reason of an end in the last words of a rank or a program."""

import re

# The first line of an operation's error in a graph. The operation's own message
# is below, after the lines that say where it was defined.
_GRAPH_ERROR = "Graph execution error:\n"
_FRAME = re.compile(r"\s|Detected at node |Node: |Original stack trace ")
# The first of several failed operations in TensorFlow's message.
_ROOT_ERROR = re.compile(r" *\(0\) \w+: (.*)")
_DECORATION = re.compile(
    r"\{\{(?:function_node|node) [^}]*\}\} ?| *\[Op:\w+\](?: name:.*)?"
)

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):$", re.MULTILINE)
_FILE = re.compile(r'^  File ".*", line \d+', re.MULTILINE)
# The line of an exception: its type, and perhaps a text. Lines of logs differ.
_EXCEPTION = re.compile(
    r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b)"
    r"[^\W\d][\w.<>]*(?:: .*|:)?$",
    re.MULTILINE,
)


def last_exception(text: str) -> str:
    """Returns the type and the text of the exception that a rank ends with.

    Other threads may write lines into its traceback, and tracebacks of their
    own.

    Args:
        text: The rank's last words on stderr.
    """
    *_, last = _TRACEBACK.split(text)
    if last == text:
        return ""
    # Leave out the lines of a traceback in the text of an operation's error.
    files = list(_FILE.finditer(last.partition(_GRAPH_ERROR)[0]))
    behind = last[files[-1].end() :] if files else last
    found = _EXCEPTION.search(behind)
    return behind[found.start() :] if found else ""


def reason(error: str) -> str:
    """Returns the line of an exception's text that gives the reason.

    Args:
        error: The exception's type and its text, as a traceback ends.
    """
    kind, graph_error, rest = error.partition(_GRAPH_ERROR)
    line = error.partition("\n")[0]
    if graph_error:
        lines = [each for each in rest.splitlines() if each.strip()]
        roots = [m[1] for each in lines if (m := _ROOT_ERROR.match(each))]
        own = [each for each in lines if not _FRAME.match(each)]
        line = kind + [*roots, *own, _GRAPH_ERROR][0]
    return _DECORATION.sub("", line).strip()


def last_line(said: bytes) -> str:
    """Returns why a program has failed, by the last line of its stderr."""
    text = said.decode(errors="replace").strip()
    return text.rpartition("\n")[2].strip().rstrip(".")

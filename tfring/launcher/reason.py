"""The sentence of an exception's text that tells why."""

import re

# The text of an operation's error in a graph begins so. The operation's own
# message is below, behind the lines that tell where it was defined.
_GRAPH_ERROR = "Graph execution error:\n"
_FRAME = re.compile(r"\s|Detected at node |Node: |Original stack trace ")
# TensorFlow's account of several operations that have failed.
_ROOT_ERROR = re.compile(r" *\(0\) \w+: (.*)")
_DECORATION = re.compile(
    r"\{\{(?:function_node|node) [^}]*\}\} ?| *\[Op:\w+\](?: name:.*)?"
)


def reason(error: str) -> str:
    """Returns one line of an exception's text, which tells why.

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

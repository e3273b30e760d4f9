"""Horovod's environment variables, which its programs and scripts set."""

from __future__ import annotations

from collections.abc import Mapping

_STALL_CHECK = "TFRING_STALL_CHECK_TIME_SECONDS"
_STALL_SHUTDOWN = "TFRING_STALL_SHUTDOWN_TIME_SECONDS"
_SAME = {
    "HOROVOD_FUSION_THRESHOLD": "TFRING_FUSION_THRESHOLD",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": _STALL_CHECK,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _STALL_SHUTDOWN,
}
_STALL_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
_TIMELINE = "HOROVOD_TIMELINE"
_LOG_LEVEL = "HOROVOD_LOG_LEVEL"
# tfring always does what these variables ask for.
_NOT_NEEDED = {"HOROVOD_ENABLE_XLA_OPS", "HOROVOD_DYNAMIC_PROCESS_SETS"}
_KNOWN = {*_SAME, _STALL_DISABLE, _TIMELINE, _LOG_LEVEL, *_NOT_NEEDED}


def counterparts(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns tfring's variables for those of Horovod's that are set.

    Variables of tfring that are set are left out, because they take precedence.
    """
    found = {
        ours: environment[theirs]
        for theirs, ours in _SAME.items()
        if environment.get(theirs)
    }
    if environment.get(_STALL_DISABLE, "0") not in ("", "0"):
        found |= {_STALL_CHECK: "0", _STALL_SHUTDOWN: "0"}
    # DYNAMIC: the program starts the timeline itself.
    if environment.get(_TIMELINE, "") not in ("", "DYNAMIC"):
        found["TFRING_TIMELINE"] = environment[_TIMELINE]
    if environment.get(_LOG_LEVEL, "").lower() in ("trace", "debug", "info"):
        found["TFRING_VERBOSE"] = "1"
    return {
        name: value for name, value in found.items() if name not in environment
    }


def unread(environment: Mapping[str, str]) -> str:
    """Returns a sentence that names variables without a counterpart, or ""."""
    names = sorted(
        name
        for name, value in environment.items()
        if name.startswith("HOROVOD_") and value and name not in _KNOWN
    )
    if not names:
        return ""
    return f"tfring has nothing for these, and ignores them: {', '.join(names)}"

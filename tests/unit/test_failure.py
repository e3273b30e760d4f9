"""The status that a process means to exit with."""

import pytest
from programs import run_python


@pytest.mark.parametrize(
    ("leave", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(-1)", 255),
        ("sys.exit('words')", 1),
        ("exit(3)", 3),
        ("quit(3)", 3),
        ("try: sys.exit(3)\nfinally: print(end='')", 3),
        ("try: sys.exit(3)\nexcept SystemExit as error: raise", 3),
        ("try: sys.exit(3)\nexcept SystemExit: sys.exit(4)", 4),
        # These exceptions do not end the process.
        ("try: sys.exit(3)\nexcept SystemExit: pass", 0),
        (
            "import threading\n"
            "thread = threading.Thread(target=sys.exit, args=[3])\n"
            "thread.start()\nthread.join()",
            0,
        ),
    ],
)
def test_status(leave, status):
    program = (
        "import atexit, sys\n"
        "from tfring._core import failure\n"
        "failure._note_exits()\n"
        "atexit.register(lambda: print(failure.exit_status()))\n"
        f"{leave}"
    )
    ended = run_python("-c", program)
    assert (ended.stdout, ended.returncode) == (f"{status}\n", status)

"""The name `horovod`: programs that import it run on tfring, unmodified.

The packages of that name are in the folder `names`. It is in `PYTHONPATH` only
on request: by `tfringrun --horovod`, `python -m tfring.horovod`, or the user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tfring.horovod import variables

FOLDER = Path(__file__).parent / "names"
VERSION = "0.28.1+tfring"


def settings(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables of such programs.

    These are the `PYTHONPATH` of `given` behind the folder of the names, and
    tfring's counterparts of the variables of Horovod that are set in `given` or
    in this process.

    Raises:
        ValueError: Horovod itself is installed.
    """
    check_alone()
    path = [str(FOLDER), *filter(None, [given.get("PYTHONPATH")])]
    counterparts = variables.counterparts({**os.environ, **given})
    return {"PYTHONPATH": os.pathsep.join(path), **counterparts}


def check_alone() -> None:
    """Raises ValueError if Horovod itself is installed.

    Horovod's modules without a counterpart would be mixed with tfring's.
    """
    import importlib.metadata  # takes 25 ms

    for found in importlib.metadata.distributions(name="horovod"):
        if found.version != VERSION:
            raise ValueError(
                f"Horovod {found.version} is installed ("
                f"{found.locate_file('horovod')}), and programs that import "
                "horovod shall get tfring. Uninstall it: pip uninstall horovod."
            )

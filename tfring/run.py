"""`python -m tfring.run` is `tfringrun`; imported, it is `tfring.run`."""

import sys

from tfring.launcher import cli, function

if __name__ == "__main__":
    sys.exit(cli.main())

# Importing a module binds it in its package, where `tfring.run` is a function.
sys.modules[__name__] = function.run  # type: ignore[assignment]

"""`python -m tfring.run` is `tfringrun`."""

import sys

from tfring.launcher import cli

if __name__ == "__main__":
    sys.exit(cli.main())

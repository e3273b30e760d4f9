"""`python -m tfring.run` is `tfringrun`."""

import sys

from tfring.run.launcher import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m tfring.bench` is `tfring-bench`."""

import sys

from tfring.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`tfringrun` for elastic jobs in which one machine loses many workers.

A user's machine is left out when three of its workers fail within half a
minute. Here it is cleared of suspicion as soon as its workers train.
"""

import sys

from tfring.launcher import cli
from tfring.launcher.elastic import rules

rules.PROGRESS_SECONDS = 0.1

if __name__ == "__main__":
    sys.exit(cli.main())

"""For the Makefile: `python -m tfring_build requirements|config`."""

import sys

from tfring_build.find import NotFoundError, missing_requirements
from tfring_build.native import write_config


def main() -> None:
    match sys.argv[1:]:
        case ["requirements"]:
            print(*missing_requirements())
        case ["config"]:
            write_config()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except NotFoundError as error:
        sys.exit(str(error))

"""For the Makefile: `python -m tfring_build requirements|keras2|config`."""

import sys

from tfring_build.find import (
    NotFoundError,
    find_tensorflow,
    missing_requirements,
)
from tfring_build.native import write_config


def main() -> None:
    match sys.argv[1:]:
        case ["requirements"]:
            print(*missing_requirements())
        case ["keras2"]:
            print(find_tensorflow().keras2)
        case ["config"]:
            write_config()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except NotFoundError as error:
        sys.exit(str(error))

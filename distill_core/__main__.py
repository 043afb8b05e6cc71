"""python -m distill_core, also installed as `distill`."""

import sys

from .cli import run_command_line


def main() -> None:
    sys.exit(run_command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()

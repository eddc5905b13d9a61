"""The entry point of ``unidle`` and of ``python -m unidle``: an interrupt while it still imports is one line, too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit code 130: it was interrupted."""
    try:
        from unidle.cli.main import main as command_line  # most of the time before a command begins

        command_line()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 wraps what is raised while a class body runs
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.stderr.write("unidle: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

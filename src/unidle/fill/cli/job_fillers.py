"""``python -m unidle.fill.cli.job_fillers FILE OPTION...``: ``unidle fill run`` that ends with the process that started it."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

_PDEATHSIG: Final = 1


def main() -> None:
    """The exit code is that of ``unidle fill run``."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)  # it has ended meanwhile
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the server decides
    sys.argv = ["unidle", "fill", "run", *sys.argv[1:]]
    runpy.run_module("unidle", run_name="__main__")


if __name__ == "__main__":
    main()

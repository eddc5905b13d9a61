"""``python -m unidle.fill.runtime.reaper GROUP...``: ends what is in control groups once its standard input ends.

The supervisor of fillers starts it and holds the other end: so fillers, and what they started, end also after a ``kill -9`` of the
supervisor. Each GROUP is ``use=directory``; those of one filler are separated by commas.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from unidle.engine.local.ranks.cgroups import ControlGroup


def main(given: list[str]) -> int:
    """Returns when nothing is left in the groups."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    from unidle.fill.runtime.kernel import end

    left = 0
    for text in given:
        paths = dict(each.split("=", 1) for each in text.split(","))
        if any(Path(path).is_dir() for path in paths.values()):
            left += not end(ControlGroup(paths), tries=30_000)  # a busy machine takes its time
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

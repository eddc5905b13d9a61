"""``python -m unidle.box DIR``: see ``docs/rooms/box.md``."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # again, isolated: no package of the host's is looked at, and it starts with less in memory
    entry = os.path.join(os.path.dirname(os.path.abspath(__file__)), "entry.py")
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-E", entry, *sys.argv[1:]])  # noqa: S606

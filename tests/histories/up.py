"""``unidle up`` with a wall clock that the run can step, and as seen from another PID namespace.

Arguments: a file with the step in ns, the name of the namespace (empty: the real one), then the words of the command.
A holder of another namespace cannot be looked up, so its lease counts: that is how a controller that is stopped loses
the store while it is alive.
"""

import sys
import time
from pathlib import Path

step, space, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
real_ns, real_s = time.time_ns, time.time


def stepped_ns() -> int:
    return real_ns() + int(step.read_text() or 0)


def stepped_s() -> float:
    return real_s() + int(step.read_text() or 0) / 1e9


time.time_ns, time.time = stepped_ns, stepped_s  # before the store takes its clock

from unidle.cli.main import main  # noqa: E402
from unidle.store import lease_owner as holder  # noqa: E402

if space:
    holder._pid_namespace = lambda: space
sys.argv = ["unidle", *words]
main()

"""A profiler process as the product's, but for how it looks: by /proc, and what a rank says of itself in its name.

``UNIDLE_TEST_LOOKS`` names a file that every look is written to; ``UNIDLE_TEST_CRASH`` one that makes it crash once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scope_continuous import procfs
from unidle.scope.continuous.per_rank import RankFinding
from unidle.scope.continuous.worker import serve
from unidle.scope.model import Profile


def look(pids: Sequence[int], seconds: float, *, hz: int) -> Profile:
    crash = Path(os.environ.get("UNIDLE_TEST_CRASH", "/nonexistent"))
    if crash.exists():
        crash.unlink()
        os.abort()
    found = procfs.look(pids, seconds, hz=hz)
    with open(os.environ.get("UNIDLE_TEST_LOOKS", os.devnull), "a") as file:
        file.write(f"{len(pids)}\n")
    return found


def judge(profile: Profile) -> dict[int, RankFinding]:
    """Half of every rank's time is a data stall, and it does a step every tenth of the window."""
    length_ns = profile.end_ns - profile.start_ns
    steps = tuple(profile.start_ns + k * length_ns // 10 for k in range(1, 10))
    ranks = [p.rank for p in profile.processes if p.rank is not None]
    return {rank: RankFinding({"data": 50.0, "compute": 50.0}, 0.0, steps) for rank in ranks}


if __name__ == "__main__":
    sys.exit(serve(look, judge))

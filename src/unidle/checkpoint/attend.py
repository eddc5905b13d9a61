"""``python -m unidle.checkpoint.attend``: what is done for checkpoints of any script, in a process of its own.

    remember PATH...        take checksums of checkpoints that have just become durable
    judge [--aside] PATH    read the newest checkpoint below PATH, and say which are bad, one JSON object a line

``--aside`` moves bad ones to ``.unidle/bad`` of their directory, where there is an older one that is not bad.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from unidle.checkpoint import sums
from unidle.checkpoint.find import judged
from unidle.checkpoint.holder import hold_paths
from unidle.checkpoint.layout import INNER, MANIFEST
from unidle.checkpoint.verify import CheckpointVerdict
from unidle.errors import BadInput

_LOOKED_AT: Final = 16
BAD: Final = "bad"


def remember(paths: Sequence[str]) -> None:
    """Checksums of all of ``paths`` but unidle's own, which hold theirs."""
    for path in paths:
        if not os.path.exists(os.path.join(path, MANIFEST)):
            sums.remember(path)


def bad_ones(path: str) -> tuple[list[CheckpointVerdict], bool]:
    """The newest checkpoints below ``path`` up to one that is not bad, and whether there is one.

    What unidle itself left unfinished is passed over.
    """
    bad: list[CheckpointVerdict] = []
    try:
        for verdict in judged(path):
            if verdict.state != "bad":
                return bad, True
            if verdict.format != "partial":
                bad.append(verdict)
            if len(bad) == _LOOKED_AT:
                break
    except BadInput:
        return [], False  # nothing there (yet), or nothing that may be read
    return bad, False


def move_aside(path: str) -> str:
    """Move a checkpoint out of the way of a script that looks for the newest; where it is now, empty where it cannot be."""
    parent, name = os.path.split(os.path.abspath(path))
    try:
        with hold_paths.inner(parent, BAD, create=True) as folder:
            there, number = set(os.listdir(folder)), 1
            while f"{name}.{number}" in there:
                number += 1
            os.rename(path, f"{name}.{number}", dst_dir_fd=folder)
    except OSError:
        return ""
    sums.forget(path)
    return os.path.join(parent, INNER, BAD, f"{name}.{number}")


def judge(path: str, *, aside: bool) -> Iterator[dict[str, str | int | None]]:
    """``path``, ``step``, ``because`` and ``moved_to`` of each bad checkpoint that is newer than all that are not bad."""
    bad, has_other = bad_ones(path)
    for verdict in bad:
        moved_to = move_aside(verdict.path) if aside and has_other else ""
        because = verdict.why if has_other or not aside else f"{verdict.why}; no older one is good"
        yield {"path": verdict.path, "step": verdict.step, "because": because, "moved_to": moved_to}


def _take_idle_time() -> None:
    """Run only when no other process needs the CPU, as far as the kernel permits."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.nice(19)


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    do, *rest = arguments
    if do == "remember":
        _take_idle_time()
        remember(rest)
        return 0
    aside = rest[0] == "--aside"
    if not aside:
        _take_idle_time()  # nobody waits for the answer
    for found in judge(rest[-1], aside=aside):
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

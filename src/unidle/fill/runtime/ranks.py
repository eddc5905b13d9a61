"""Which processes of this machine train, and which of them show their waits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from unidle.engine.local.ranks.process_tree import descendants, ticks_of
from unidle.errors import BadInput
from unidle.rank.waits import BoardReader, boards_of


@dataclass(frozen=True, slots=True)
class FilledRank:
    """A process that trains. ``number``: its rank, or its place in the list. ``board``: the descriptor of its board; None without one."""

    number: int
    pid: int
    board: int | None


def rank_below(number: int, root: int) -> FilledRank | None:
    """The process at or below ``root`` that has a board; None where none has one yet."""
    for pid in (root, *sorted(descendants(root))):
        for fd in boards_of(pid):
            try:
                BoardReader(pid, fd).close()
            except (OSError, ValueError):  # gone meanwhile, or a child that was forked with it
                continue
            return FilledRank(number, pid, fd)
    return None


def check_pid(pid: int) -> None:
    """Errors: BadInput where there is no such process, or it belongs to another user."""
    if ticks_of(pid) is None:
        raise BadInput("no such process", field="--pid", value=pid, remedy="name a process that runs")
    owner = Path(f"/proc/{pid}").stat().st_uid
    if os.geteuid() not in (0, owner):
        raise BadInput(
            "belongs to another user", field="--pid", value=pid, remedy="run `unidle fill` as that user"
        )

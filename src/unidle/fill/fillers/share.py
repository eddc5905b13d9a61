"""Which part of the work this filler does: those next to other ranks do the rest."""

from __future__ import annotations

import os


def share() -> tuple[int, int]:
    """The filler's number, and how many there are; 0 of 1 outside of ``unidle fill run``."""
    return int(os.environ.get("UNIDLE_FILL_INDEX") or 0), int(os.environ.get("UNIDLE_FILL_COUNT") or 1)


def own_path(path: str) -> str:
    """``{index}`` in a path becomes the filler's number, so that each has an output of its own."""
    return path.replace("{index}", str(share()[0]))

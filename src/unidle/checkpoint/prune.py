"""Which checkpoints to remove, and their removal: never the newest good one, and a kill in the middle loses none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from unidle.checkpoint import sums
from unidle.checkpoint.layout import is_partial, sync_directory
from unidle.checkpoint.verify import CheckpointVerdict
from unidle.errors import BadInput


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one checkpoint, and why."""

    verdict: CheckpointVerdict
    keep: bool
    because: str


def choose(found: Sequence[CheckpointVerdict], keep: int, every: int = 0) -> list[Fate]:
    """The fate of each checkpoint (newest first): the newest ``keep`` good ones stay, and with ``every`` those whose step
    is a multiple of it.

    Bad ones go once a good one is there. Where nothing is known to be good nothing goes but what was never
    finished, unless something newer is: so the newest good one is never among those removed. Raises BadInput.
    """
    if keep < 1:
        raise BadInput(
            "must be at least 1", field="--keep", value=keep, remedy="the newest good one always stays"
        )
    if every < 0:
        raise BadInput("must be 0 or more", field="--keep-every", value=every, remedy="0 turns it off")
    usable = [v for v in found if v.state != "bad"]
    newest_good = next((v for v in found if v.state == "good"), None)
    kept = usable[:keep]
    if newest_good is not None and newest_good not in kept:
        kept.append(newest_good)
    return [_fate(verdict, kept, every, newest_good) for verdict in found]


def _fate(
    verdict: CheckpointVerdict,
    kept: Sequence[CheckpointVerdict],
    every: int,
    newest_good: CheckpointVerdict | None,
) -> Fate:
    if verdict in kept:
        return Fate(verdict, True, "the newest good one" if verdict is newest_good else "among the newest")
    if verdict.state == "bad":
        if verdict.format == "partial" or newest_good is not None:
            return Fate(verdict, False, verdict.why)
        return Fate(verdict, True, f"no better one is known to be good, although it {verdict.why}")
    if every and verdict.step is not None and verdict.step % every == 0:
        return Fate(verdict, True, f"its step is a multiple of {every}")
    if newest_good is None:
        return Fate(verdict, True, "no checkpoint is known to be good")
    return Fate(verdict, False, "older than those that are kept")


def remove(path: str) -> None:
    """Remove a checkpoint: it loses its name first, so that what a kill leaves is never taken for a checkpoint."""
    parent, name = os.path.split(os.path.abspath(path))
    if not os.path.isdir(path):
        os.unlink(path)
    elif is_partial(name):
        shutil.rmtree(path)
    else:
        doomed = os.path.join(parent, f".{name}.pruned")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(path, doomed)
        sync_directory(parent)
        shutil.rmtree(doomed)
    sync_directory(parent)
    sums.forget(path)

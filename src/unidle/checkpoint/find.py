"""The checkpoints in a directory, newest first, and the newest that is good."""

from __future__ import annotations

import os
from collections.abc import Iterator

from unidle.checkpoint import formats
from unidle.checkpoint.layout import is_partial
from unidle.checkpoint.verify import CheckpointVerdict, verify
from unidle.errors import BadInput


def candidates(path: str) -> list[str]:
    """Paths of what may be checkpoints in a directory, newest first: by step where names say it, else by time.

    ``path`` itself where it is one. Unfinished ones of unidle are among them, so that they can be named.
    """
    if not os.path.exists(path):
        raise BadInput("does not exist", field="PATH", value=path, remedy="name a directory of checkpoints")
    if not os.path.isdir(path) or _is_one(path):
        return [path]
    try:
        with os.scandir(path) as found:
            entries = [e for e in found if _may_be_one(e)]
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error.strerror}",
            field="PATH",
            value=path,
            remedy="name a directory that you may read",
        ) from None
    return [e.path for e in sorted(entries, key=_age, reverse=True)]


def judged(path: str, *, deep: bool = True) -> Iterator[CheckpointVerdict]:
    """The verdict on each of :func:`candidates`, newest first, read one at a time."""
    for candidate in candidates(path):
        yield verify(candidate, deep=deep)


def find_newest_good(path: str) -> tuple[CheckpointVerdict | None, list[CheckpointVerdict]]:
    """The newest checkpoint below ``path`` that can be trusted, and the newer ones that cannot.

    A ``good`` one is taken before an ``unverified`` one only where the latter is not newer: formats without
    checksums are all that many scripts have. Nothing is executed, and no byte of the newest good one is unread.
    """
    passed: list[CheckpointVerdict] = []
    for verdict in judged(path):
        if verdict.state != "bad":
            return verdict, passed
        passed.append(verdict)
    return None, passed


def _is_one(path: str) -> bool:
    names = os.listdir(path)
    if any(
        n == ".metadata" or n.endswith(".distcp") or (n.startswith("shard-") and "-of-" in n) for n in names
    ):
        return True
    own = ("pytorch_model", "model.safetensors", "model-0", "mp_rank_", "optimizer.pt", "trainer_state.json")
    return any(n.startswith(own) for n in names)


def _may_be_one(entry: os.DirEntry[str]) -> bool:
    name = entry.name
    if is_partial(name):
        return True
    if formats.in_flux(name) or formats.never_a_checkpoint(name) or name in formats.TRACKERS:
        return False
    if entry.is_symlink() and os.path.dirname(os.path.realpath(entry.path)) == os.path.realpath(
        os.path.dirname(entry.path)
    ):
        return False  # a second name of a neighbour, such as "latest"
    return entry.is_file() or (entry.is_dir() and bool(os.listdir(entry.path)))


def _age(entry: os.DirEntry[str]) -> tuple[bool, int, int]:
    step = formats.step_in(entry.name.lstrip("."))
    return step is not None, step or 0, entry.stat().st_mtime_ns

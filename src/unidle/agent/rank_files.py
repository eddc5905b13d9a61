"""Parts of the files of ranks whose box has ended, read on behalf of the controller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from unidle import private
from unidle.engine.local.ranks import rundir
from unidle.hub.file_parts import RankFilePart

MOST_BYTES: Final = 512 * 1024
"""Of one answer: a frame is at most 1 MiB, and base64 takes a third more."""


def read_part(root: Path, place: tuple[str, int, int], file: str, offset: int, count: int) -> RankFilePart:
    """Bytes of a file of a rank: ``place`` is job, attempt and rank; a negative ``offset`` counts from the end.

    Errors: ValueError for another file or an id that is no directory, else OSError.
    """
    if not rundir.is_shown(file):
        raise ValueError(f"{file[:80]!r} is not a file of a rank")
    directory = rundir.rank_dir(root, *place)
    with private.folder(directory) as at, open(private.open_file(file, at, where=directory), "rb") as stream:
        status = os.fstat(stream.fileno())
        size = status.st_size
        begin = max(size + offset, 0) if offset < 0 else offset
        stream.seek(begin)
        data = stream.read(min(max(count, 0), MOST_BYTES))
    return RankFilePart(data, size, status.st_ino)

"""Parts of the files of ranks whose box has ended, read on behalf of the controller."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Any, Final

from unidle import private
from unidle.engine.local.ranks import rundir

_FILES: Final = re.compile(r"log|log\.[0-9]{1,4}|log\.times|journal\.jsonl|supervisor\.err")
MOST_BYTES: Final = 512 * 1024
"""Of one answer: a frame is at most 1 MiB, and base64 takes a third more."""


def read_part(root: Path, place: tuple[str, int, int], file: str, offset: int, count: int) -> dict[str, Any]:
    """Bytes of a file of a rank: ``place`` is job, attempt and rank; a negative ``offset`` counts from the end.

    Returns ``text`` (base64), ``size``, the bytes of the whole file, and its ``inode``. Errors: ValueError for another file or
    an id that is no directory, else OSError.
    """
    if not _FILES.fullmatch(file):
        raise ValueError(f"{file[:80]!r} is not a file of a rank")
    directory = rundir.rank_dir(root, *place)
    with private.folder(directory) as at, open(private.open_file(file, at, where=directory), "rb") as stream:
        status = os.fstat(stream.fileno())
        size = status.st_size
        begin = max(size + offset, 0) if offset < 0 else offset
        stream.seek(begin)
        data = stream.read(min(max(count, 0), MOST_BYTES))
    return {"text": base64.b64encode(data).decode(), "size": size, "inode": status.st_ino}

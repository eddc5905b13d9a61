"""Preprocessing of data: a piece is as many lines of a text file as the wait holds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO, Final

from unidle.atomic import replaced
from unidle.errors import BadInput
from unidle.fill.fillers.load import of_function
from unidle.fill.fillers.share import own_path, share
from unidle.fill.sliced import FillPiece, Room

_LINES_MOST: Final = 4096


class Preprocess:
    """``function`` (FILE.py:NAME or module:NAME) makes bytes of each line of ``data``; they are appended to ``out``.

    Next to several ranks each filler does its part of the file, and ``out`` needs ``{index}``. Where it is: ``OUT.done`` has the offsets in ``data`` and ``out`` up
    to which all is done, so a filler continues there, and makes what came after it again.
    """

    def __init__(self, data: str, function: str, out: str) -> None:
        self._function: Any = of_function(function)
        index, count = share()
        if count > 1 and "{index}" not in out:
            raise BadInput(
                "is the same for all fillers", field="arguments.out", value=out, remedy="put {index} into it"
            )
        self._path, self._data = Path(own_path(out)), Path(data)
        size = self._data.stat().st_size
        with self._data.open("rb") as file:
            begin, self._end = (_after_line(file, size * k // count) for k in (index, index + 1))
        self._marks = Path(f"{self._path}.done")
        self._at, written = self._read(begin)
        with self._path.open("ab") as out_file:
            out_file.truncate(written)
        self._line_ns, self._lines = 20_000.0, 0

    @property
    def finished(self) -> bool:
        return self._at >= self._end

    def next_piece(self, room: Room) -> FillPiece | None:
        self._lines = max(1, min(int(room.ns * 0.8 / self._line_ns), _LINES_MOST))
        return FillPiece(int(self._lines * self._line_ns), 0, self._lines)

    def run(self) -> None:
        begun, done = time.process_time_ns(), 0
        with self._data.open("rb") as file, self._path.open("ab") as out:
            file.seek(self._at)
            while done < self._lines and file.tell() < self._end:
                out.write(self._function(file.readline().rstrip(b"\n")))
                done += 1
            out.flush()
            self._at, written = file.tell(), out.tell()
        with replaced(self._marks, 0o666, umask=True) as marks:
            marks.write(f"{self._at} {written}\n".encode())
        took = (time.process_time_ns() - begun) / max(done, 1)
        self._line_ns += (max(took, 100.0) - self._line_ns) / 4

    def give_up(self) -> int:
        return 0  # each piece is complete

    def _read(self, begin: int) -> tuple[int, int]:
        """Offsets in the input and the output; without a mark of this part, from its begin."""
        try:
            at, written = map(int, self._marks.read_text().split())
            if begin <= at <= max(self._end, begin) and written <= self._path.stat().st_size:
                return at, written
        except (OSError, ValueError):
            pass
        return begin, 0


def _after_line(file: BinaryIO, offset: int) -> int:
    """Where the first line begins at or after ``offset``."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    file.readline()
    return file.tell()

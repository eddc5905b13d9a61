"""The bytes of another program's file: plain or gzip, read as a stream, and never more than the stated limits."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from unidle.errors import BadInput

CHUNK: Final = 4 << 20
TEXT_LIMIT: Final = (
    16 << 30
)  # of a decompressed file; reading that takes minutes, and no profiler writes more
LINE_LIMIT: Final = 1 << 20
WHOLE_LIMIT: Final = 512 << 20  # of a form that cannot be read as a stream


class ByteSource(Protocol):
    """What bytes are read from."""

    def read(self, n: int, /) -> bytes: ...


class Stream:
    """Chunks of a file, decompressed, with a limit on their sum."""

    def __init__(self, raw: ByteSource, name: str, limit: int = TEXT_LIMIT) -> None:
        self._raw, self._limit, self._seen = raw, limit, 0
        self.name = name

    def read(self, n: int = CHUNK) -> bytes:
        """The next bytes, nothing at the end. Raises :class:`BadInput` beyond the limit."""
        chunk = self._raw.read(n)
        self._seen += len(chunk)
        if self._seen > self._limit:
            raise BadInput(
                f"is longer than {self._limit >> 20} MiB, the limit for its form",
                field=self.name,
                remedy="profile a shorter time",
            )
        return chunk

    def whole(self, limit: int = WHOLE_LIMIT) -> bytes:
        """All that is left."""
        self._limit = min(self._limit, limit)
        pieces = []
        while chunk := self.read():
            pieces.append(chunk)
        return b"".join(pieces)

    def lines(self) -> Iterator[tuple[int, bytes, bool]]:
        """Each line with its number from 1, without its end, and whether it has an end."""
        rest, number = b"", 0
        while chunk := self.read():
            *full, rest = (rest + chunk).split(b"\n")
            for line in full:
                number += 1
                yield number, line.removesuffix(b"\r"), True
            if len(rest) > LINE_LIMIT:
                raise BadInput(
                    f"line {number + 1} is longer than {LINE_LIMIT >> 20} MiB",
                    field=self.name,
                    remedy="give a file of a profiler",
                )
        if rest:
            yield number + 1, rest, False


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Stream]:
    """A file as a :class:`Stream`. Every failure to read it is one :class:`BadInput` with its name."""
    name = str(path)
    try:
        with Path(path).open("rb") as raw:
            if raw.read(2) == b"\x1f\x8b":
                raw.seek(0)
                with gzip.GzipFile(fileobj=raw) as inner:
                    yield Stream(inner, name)
            else:
                raw.seek(0)
                yield Stream(raw, name)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"its gzip data is damaged or cut off: {error}", field=name, remedy="copy the file again"
        ) from None
    except FileNotFoundError:
        raise BadInput("there is no such file", field=name, remedy="check its path") from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", field=name) from None


def damaged(name: str, what: str) -> BadInput:
    """The error for a file that begins as a known form but does not continue as one."""
    return BadInput(what, field=name, remedy="the file is damaged or cut off: copy or export it again")

"""Files that commands write: whole under their name, or not at all."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from unidle.atomic import PRIVATE, replaced
from unidle.cli.common import cannot_write
from unidle.private import target_of


@contextmanager
def whole_file(path: str | None, field: str, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A stream into ``path``, which appears when all is written; standard output for None and ``-``.

    ``mode``: of the file, whatever the umask. A device or a FIFO is written as it is, never replaced; a link that
    another user made is refused. Errors: :class:`unidle.errors.BadInput` about
    ``field`` where the file cannot be made or written.
    """
    if path is None or path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        target = Path(target_of(path))
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with target.open("wb") as stream:  # IsADirectoryError says it
                yield stream
            return
        with replaced(target, mode) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(field, path, error) from error

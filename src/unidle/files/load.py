"""Reads a YAML (or JSON) file of a user as untrusted input."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, TextIO

from unidle.files.document import BadFile, Bounds, Document, printable
from unidle.files.tree import parse

STDIN: Final = "-"
# What YAML leaves out of text.
_NOT_TEXT: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def load_document(path: str | os.PathLike[str], *, what: str, bounds: Bounds) -> Document:
    """Read ``path`` (``-`` is standard input); ``what`` names the kind of file in errors.

    Errors: :class:`unidle.errors.BadInput` for whatever is wrong with the file or its content.
    """
    text = read_text(path, what=what, limit_bytes=bounds.size_bytes)
    source = source_name(path)
    if not text.strip():
        raise BadFile(source, "the file is empty", remedy=_start(what))
    return parse(text, source, what, bounds)


def read_text(path: str | os.PathLike[str], *, what: str, limit_bytes: int, escapes: bool = False) -> str:
    """The whole of a text file in UTF-8 (``-`` is standard input), at most ``limit_bytes`` long.

    With ``escapes`` it may be a terminal's output, styled by escape characters.

    Errors: :class:`unidle.errors.BadInput` where it cannot be read, is larger, or is not text.
    """
    name, source = os.fspath(path), source_name(path)
    if not name or "\0" in name:
        raise BadFile(f"{what} file", "the path is not a path", value=name, remedy="give the file's path")
    return _decode(_read(name, source, what, limit_bytes), source, escapes=escapes)


def source_name(path: str | os.PathLike[str]) -> str:
    """How errors name the file."""
    name = os.fspath(path)
    return "standard input" if name == STDIN else printable(name)


def base_dir_of(path: str | os.PathLike[str]) -> str:
    """The directory that relative paths in the file start from: the file's own, for ``-`` the current one."""
    name = os.fspath(path)
    return os.getcwd() if name == STDIN else os.path.dirname(os.path.abspath(name))  # noqa: PTH109, PTH100, PTH120


@contextmanager
def opened_text(path: str | os.PathLike[str], *, what: str) -> Iterator[TextIO]:
    """The text of a file of any size (``-`` is standard input), to be read line by line.

    Errors: :class:`unidle.errors.BadInput` as those of ``read_text``; what is not UTF-8 is a ``UnicodeDecodeError``
    where it is read.
    """
    name, source = os.fspath(path), source_name(path)
    with _explained(source, what):
        if name == STDIN:
            yield io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
        else:
            with _regular(name, source, what) as stream:
                yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


@contextmanager
def _regular(name: str, source: str, what: str) -> Iterator[BinaryIO]:
    # Non-blocking, so that opening a FIFO without a writer does not wait for one.
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_regular(os.fstat(fd).st_mode, source, what)
        with os.fdopen(fd, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(fd)


def _read(name: str, source: str, what: str, limit: int) -> bytes:
    with _explained(source, what):
        if name == STDIN:
            return _at_most(sys.stdin.buffer.read, source, limit)
        with _regular(name, source, what) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise _too_large(source, limit, size)
            return _at_most(stream.read, source, limit)


@contextmanager
def _explained(source: str, what: str) -> Iterator[None]:
    """Turn errors of the operating system into one error."""
    try:
        yield
    except FileNotFoundError:
        raise BadFile(source, "there is no such file", remedy=f"check the path of the {what} file") from None
    except PermissionError:
        raise BadFile(source, "the file may not be read", remedy=f"chmod +r {source}") from None
    except (UnicodeError, BadFile):
        raise
    except (OSError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = "it is a socket or a device without a driver" if code == errno.ENXIO else str(error)
        raise BadFile(
            source, f"the file cannot be read: {reason}", remedy=f"check the path of the {what} file"
        ) from None


def _check_regular(mode: int, source: str, what: str) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise BadFile(source, "it is a directory, not a file", remedy=f"name the {what} file in it")
    kind = "a FIFO" if stat.S_ISFIFO(mode) else "a device"
    raise BadFile(source, f"it is {kind}, not a file", remedy="use - to read standard input")


def _at_most(read: Callable[[int], bytes], source: str, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := read(min(1 << 16, limit + 1 - size)):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(source, limit, None)
    return b"".join(parts)


def _too_large(source: str, limit: int, size: int | None) -> BadFile:
    shown = f"{size:,} bytes" if size is not None else "more"
    return BadFile(
        source,
        f"the file is too large: at most {limit:,} bytes are read, it has {shown}",
        remedy="check that it is the right file",
    )


def _decode(content: bytes, source: str, *, escapes: bool) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        raise BadFile(source, "the text is UTF-16 or UTF-32", remedy="save it as UTF-8")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadFile(
            f"{source}:{line}",
            f"not text in UTF-8: byte 0x{content[error.start]:02x}",
            remedy="save it as UTF-8",
        ) from None
    if found := _NOT_TEXT.search(text.replace("\x1b", " ") if escapes else text):
        line = text.count("\n", 0, found.start()) + 1
        raise BadFile(
            f"{source}:{line}",
            f"not text: character U+{ord(found[0]):04X}",
            remedy="write such a character as an escape in double quotes, or name the right file",
        )
    return text


def _start(what: str) -> str:
    if what == "job":
        return "the shortest form is: command: [python, train.py]"
    if what == "clusters":
        return "the shortest form is: clusters: [{name: east, store: east.db}]"
    if what == "span":
        return "the shortest form is: {stages: 4, microbatches: 8, stage_ns: {forward: 200, backward: 200, weight: 200}}"
    return "the shortest form is: nodes: [{id: n1, devices: {count: 1, kind: cpu}}]"

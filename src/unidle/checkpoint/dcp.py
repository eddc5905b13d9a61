"""PyTorch's distributed checkpoints, without PyTorch: ``.metadata`` against the ``.distcp`` files.

``.metadata`` is a pickle of ``torch.distributed.checkpoint.metadata.Metadata``. Its ``storage_data`` gives the file,
the first byte and the length of each item. Each item is a whole zip file (``torch.save``).
The pickle is read with stand-ins for all classes, so that nothing of it is executed.
"""

from __future__ import annotations

import io
import os
import pickle
from typing import IO, TYPE_CHECKING, Literal, Self, cast

from unidle.checkpoint.layout import Damaged
from unidle.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Blank:
    """A stand-in for an object of any class: keeps the fields that the pickle gives it, and executes nothing."""

    fields: dict[str, object]

    def __new__(cls, *_: object, **fields: object) -> Self:
        made = object.__new__(cls)  # pickles skip __init__
        made.fields = dict(fields)
        return made

    def __setstate__(self, state: object) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, dict):
                self.fields.update(part)

    def __call__(self, *_: object) -> _Blank:
        return _Blank()

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Reader(pickle.Unpickler):
    def find_class(self, _module: str, _name: str) -> type[_Blank]:
        return type("Blank", (_Blank,), {})


def items(path: str) -> list[tuple[str, int, int]]:
    """File name, first byte and length of each item of the checkpoint directory. Raises :class:`Damaged`, OSError."""
    with open(os.path.join(path, ".metadata"), "rb") as file:
        data = file.read()
    try:
        top = _Reader(io.BytesIO(data)).load()
        storage = top.fields["storage_data"]
        found = []
        for info in storage.values():
            name, at, length = (info.fields[k] for k in ("relative_path", "offset", "length"))
            found.append((str(name), int(at), int(length)))
    except OSError:
        raise
    except Exception as error:  # a torn pickle raises almost anything
        raise Damaged(f".metadata cannot be read: {type(error).__name__} {error}") from None
    return sorted(found)


def verify(path: str, deep: bool) -> tuple[Literal["good", "unverified"], str]:
    """Judge a checkpoint directory: all files that ``.metadata`` names, whole, and with ``deep`` the CRC of each item."""
    from unidle.checkpoint.verify import zip_state

    try:
        found = items(path)
    except FileNotFoundError:
        raise Damaged("has no .metadata, which is written last: it was not finished") from None
    unsure = 0
    for name, parts in _by_file(found):
        inner = os.path.join(path, name)
        if not os.path.exists(inner):
            raise Damaged(f"{name} is missing, which .metadata names")
        with open(inner, "rb") as file:
            size, end = os.fstat(file.fileno()).st_size, max(at + length for at, length in parts)
            if size < end:
                raise Damaged(f"{name} has {size} bytes; .metadata needs at least {end}")
            for at, length in parts if deep else ():
                try:
                    state, _ = zip_state(cast("IO[bytes]", _Slice(file, at, length)), deep)
                except Damaged as damage:
                    raise Damaged(f"the item at byte {at} of {name} {damage}") from None
                unsure += state != "good"
    if not deep:
        return (
            "unverified",
            f"all listed items are there by size ({counted(len(found), 'item')}); the bytes were not read",
        )
    if unsure:
        return "unverified", f"without a CRC that can be checked: {unsure} of {counted(len(found), 'item')}"
    return "good", f"CRCs match ({counted(len(found), 'item')})"


def _by_file(found: list[tuple[str, int, int]]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    for name in dict.fromkeys(name for name, _, _ in found):
        yield name, [(at, length) for other, at, length in found if other == name]


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._fd, self._start, self._length, self._at = file.fileno(), start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._length}[whence]
        if base + offset < 0:
            raise OSError("seek before the start")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._at)
        data = os.pread(
            self._fd, left if size is None or size < 0 else min(size, left), self._start + self._at
        )
        self._at += len(data)
        return data

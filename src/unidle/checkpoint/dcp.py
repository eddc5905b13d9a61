"""PyTorch's distributed checkpoints, without PyTorch: ``.metadata`` against the ``.distcp`` files.

``.metadata`` is a pickle of ``torch.distributed.checkpoint.metadata.Metadata``. Its ``storage_data`` gives the file,
the first byte and the length of each item. Each item is a whole zip file (``torch.save``).
The pickle is read as plain data (:mod:`unidle.checkpoint.metadata_pickle`), so that nothing of it is executed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Final, Literal, cast

from unidle.checkpoint import metadata_pickle
from unidle.checkpoint.layout import Damaged
from unidle.checkpoint.metadata_pickle import Pairs, Record
from unidle.checkpoint.safe_open import FilePart, open_inside, read_inside, shown
from unidle.words import counted

METADATA: Final = ".metadata"
_MOST_BYTES: Final = 1 << 30
_OFFSET_MOST: Final = 1 << 62


def items(path: str) -> list[tuple[str, int, int]]:
    """File name, first byte and length of each item of the checkpoint directory. Raises :class:`Damaged`, OSError."""
    data = read_inside(path, METADATA, _MOST_BYTES)
    try:
        top = metadata_pickle.read(data)
        storage = top.fields.get("storage_data") if isinstance(top, Record) else None
        if not isinstance(storage, Pairs):
            raise Damaged("has no list of items (storage_data)")
        return sorted({_item(info) for _, info in storage.pairs})
    except Damaged as damage:
        raise Damaged(f"{METADATA} cannot be read: it {damage}") from None


def _item(info: object) -> tuple[str, int, int]:
    fields = info.fields if isinstance(info, Record) else {}
    name, at, length = (fields.get(k) for k in ("relative_path", "offset", "length"))
    if not (isinstance(name, str) and _is_offset(at) and _is_offset(length)):
        raise Damaged(f"has an item without a file, an offset or a length (file {shown(name)})")
    return name, int(cast("int", at)), int(cast("int", length))


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _OFFSET_MOST


def verify(path: str, deep: bool) -> tuple[Literal["good", "unverified"], str]:
    """Judge a checkpoint directory: all files that ``.metadata`` names, whole, and with ``deep`` the CRC of each item."""
    from unidle.checkpoint.verify import zip_state

    try:
        found = items(path)
    except FileNotFoundError:
        raise Damaged("has no .metadata, which is written last: it was not finished") from None
    unsure = 0
    for name, parts in _by_file(found):
        try:
            fd = open_inside(path, name)
        except FileNotFoundError:
            raise Damaged(f"{shown(name)} is missing, which .metadata names") from None
        with os.fdopen(fd, "rb") as file:
            size, end = os.fstat(file.fileno()).st_size, max(at + length for at, length in parts)
            if size < end:
                raise Damaged(f"{shown(name)} has {size} bytes; .metadata needs at least {end}")
            for at, length in parts if deep else ():
                try:
                    state, _ = zip_state(cast("IO[bytes]", FilePart(fd, at, length)), deep)
                except Damaged as damage:
                    raise Damaged(f"the item at byte {at} of {shown(name)} {damage}") from None
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
    files: dict[str, list[tuple[int, int]]] = {}
    for name, at, length in found:
        files.setdefault(name, []).append((at, length))
    yield from files.items()

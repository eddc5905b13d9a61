"""What a disk holds after a power cut, from the record of what was done to it. Pure: bytes in, a tree out.

What was synced is there. Of the rest, a disk may have any part of a file's writes, in any order and torn at a
sector, and any number of the first changes of a directory.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

SECTOR_BYTES: Final = 512
_HEAD: Final = struct.Struct("=c7xQQIII4x")


@dataclass(frozen=True, slots=True)
class Op:
    """One call that changed the disk: ``code`` as in recorder.c."""

    code: str
    path: str
    other: str = ""
    inode: int = 0
    offset: int = 0
    data: bytes = b""


def parse(record: bytes) -> Iterator[Op]:
    """The calls of a record. A last one that is not whole was not done."""
    at = 0
    while at + _HEAD.size <= len(record):
        code, inode, offset, data, path, other = _HEAD.unpack_from(record, at)
        at += _HEAD.size
        if at + data + path + other > len(record):
            return
        texts = record[at : at + path + other]
        at += path + other
        yield Op(
            code.decode(), texts[:path].decode(), texts[path:].decode(), inode, offset, record[at : at + data]
        )
        at += data


Change = tuple[int, bytes | None]


@dataclass(slots=True, eq=False)
class File:
    """``durable`` is on the disk; ``pending`` are (offset, data), with None for data where the file was cut off there.

    ``since_failure``: changes from the first failed sync on, in order, each with whether a later sync has it on the disk.
    """

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    since_failure: list[tuple[Change, bool]] = field(default_factory=list)

    def sync(self) -> None:
        if self.since_failure:
            self.since_failure += [(change, True) for change in self.pending]
        else:
            for change in self.pending:
                _change(self.durable, *change)
        self.pending.clear()

    def fail(self) -> None:
        """A sync failed: the kernel takes what it could not write for written."""
        self.since_failure += [(change, False) for change in self.pending]
        self.pending.clear()

    def after_cut(self, chance: random.Random, kept: float) -> bytes:
        content = bytearray(self.durable)
        for (offset, data), sure in [*self.since_failure, *((change, False) for change in self.pending)]:
            if not sure:
                if chance.random() >= kept:
                    continue
                if data and chance.random() < 0.2:  # torn: the sectors before a random one
                    sector = (offset + chance.randrange(len(data))) // SECTOR_BYTES * SECTOR_BYTES
                    data = data[: max(0, sector - offset)]
            _change(content, offset, data)
        return bytes(content)


@dataclass(slots=True, eq=False)
class Folder:
    """``changes`` are of names, in order, since the last sync of the directory: (old name, new name, what)."""

    names: dict[str, Entry] = field(default_factory=dict)  # as the programs see it
    durable: dict[str, Entry] = field(default_factory=dict)
    changes: list[tuple[str, str, Entry | None]] = field(default_factory=list)

    def change(self, old: str, new: str, what: Entry | None) -> None:
        _rename(self.names, old, new, what)
        self.changes.append((old, new, what))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def after_cut(self, chance: random.Random, kept: float) -> dict[str, Entry]:
        found = dict(self.durable)
        for change in self.changes:
            if chance.random() >= kept:
                break
            _rename(found, *change)
        return found


Entry = File | Folder


def after_cut(ops: Iterator[Op], root: str, chance: random.Random) -> dict[str, bytes | None]:
    """The tree below ``root``: the content of each file by its path, None for a directory."""
    kept = chance.choice((0.0, 0.5, 0.9, 1.0))
    ordered = (
        chance.random() < 0.5
    )  # a journal of metadata: a sync of a file has all names before it on the disk, too
    top, files = Folder(), dict[int, File]()
    for op in ops:
        _apply(op, top, files, root, ordered=ordered)
    tree: dict[str, bytes | None] = {}

    def walk(folder: Folder, path: str) -> None:
        for name, entry in folder.after_cut(chance, kept).items():
            if isinstance(entry, Folder):
                tree[f"{path}/{name}"] = None
                walk(entry, f"{path}/{name}")
            else:
                tree[f"{path}/{name}"] = entry.after_cut(chance, kept)

    walk(top, root)
    return tree


def _apply(op: Op, top: Folder, files: dict[int, File], root: str, *, ordered: bool) -> None:
    if op.code in "SF" and _is_folder(top, op.path, root):
        if op.code == "S":
            _all_names(top) if ordered else _folder(top, op.path, root).sync()
        return
    folder, name = _place(top, op.path, root)
    if op.code == "C":
        files[op.inode] = File()
        folder.change("", name, files[op.inode])
    elif op.code == "M":
        folder.change("", name, Folder())
    elif op.code in "UD":
        folder.change(name, "", None)
    elif op.code == "R":
        target, new = _place(top, op.other, root)
        what = folder.names[name]
        if target is folder:
            folder.change(name, new, what)
        else:
            target.change("", new, what)
            folder.change(name, "", None)
    else:
        _apply_to_file(op, folder, name, files)
        if op.code == "S" and ordered:
            _all_names(top)


def _apply_to_file(op: Op, folder: Folder, name: str, files: dict[int, File]) -> None:
    file = files.get(op.inode)
    if file is None:  # made without a call of this library, as the standard error of a process is
        file = files[op.inode] = File()
        if name not in folder.names:
            folder.change("", name, file)
    if op.code == "W":
        file.pending.append((op.offset, op.data))
    elif op.code == "T":
        file.pending.append((op.offset, None))
    elif op.code == "S":
        file.sync()
    elif op.code == "F":
        file.fail()


def _all_names(folder: Folder) -> None:
    folder.sync()
    for entry in folder.names.values():
        if isinstance(entry, Folder):
            _all_names(entry)


def _place(top: Folder, path: str, root: str) -> tuple[Folder, str]:
    parent, _, name = path.rpartition("/")
    return _folder(top, parent, root), name.removesuffix(" (deleted)")


def _folder(top: Folder, path: str, root: str) -> Folder:
    for part in path.removeprefix(root).split("/"):
        if part:
            found = top.names.setdefault(part, Folder())
            assert isinstance(found, Folder), path
            top = found
    return top


def _is_folder(top: Folder, path: str, root: str) -> bool:
    if path == root:
        return True
    folder, name = _place(top, path, root)
    return isinstance(folder.names.get(name), Folder)


def _rename(names: dict[str, Entry], old: str, new: str, what: Entry | None) -> None:
    if old:
        names.pop(old, None)
    if new and what is not None:
        names[new] = what


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data

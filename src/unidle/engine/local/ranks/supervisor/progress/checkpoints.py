"""Sees durable checkpoints of unmodified scripts in the directory that the job declares."""

# pathlib would cost a rank's supervisor more to import than all of this folder

from __future__ import annotations

import os
import stat
import time

from unidle.checkpoint import formats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .step_counter import Mark

    _Print = tuple[int, int, int, int]  # newest mtime (ns), bytes, files, inode

_SETTLE_NS = 500_000_000
_FUTURE_SETTLE_NS = 2_000_000_000  # for files whose time lies ahead of this machine's clock
_MOST_ENTRIES = 4096
_MOST_FILES = 20_000
_DEEPEST = 6
_SETTLED_EVERY = 8


class _Entry:
    """What is known of one name in the directory."""

    __slots__ = ("absent_ns", "durable", "looked_ns", "print", "since_ns", "times")

    def __init__(self, print_: _Print, since_ns: int, absent_ns: int) -> None:
        self.print = print_
        self.since_ns = self.looked_ns = since_ns  # look that saw this state first, and last
        self.absent_ns = absent_ns  # the look before it
        self.times = 1  # looks that saw it
        self.durable = False


class CheckpointWatch:
    """Watches one directory (or one file) that may not exist yet.

    An entry is a file or a directory in it. It is durable when its size and times are the same in
    two scans, it is at least half a second old, and, where its format shows that, it is whole: zip
    files (``torch.save``), safetensors, JSON, PyTorch's distributed checkpoints (``.metadata`` is
    written last). Names that say they are not final, logs and configurations are left alone. Its
    time is that of its newest file. What was there at the first scan was there before the attempt.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries: dict[str, _Entry] = {}
        self._trackers: dict[str, tuple[int, int]] = {}
        self._last_ns: int | None = None
        self._scans = 0

    def scan(self, t_ns: int, final: bool = False) -> list[Mark]:
        """Marks of kind ``saved`` for what has become durable since the last scan.

        ``final``: the rank has ended, so what does not look whole now never will.
        """
        first = self._last_ns is None
        before_ns = t_ns if self._last_ns is None else self._last_ns
        offset_ns = t_ns - time.time_ns()
        names = self._names()
        marks: list[Mark] = []
        for name, path in names.items():
            if formats.in_flux(name) or formats.never_a_checkpoint(name):
                continue
            entry = self._look(name, path, t_ns, before_ns, final)
            if entry is None or entry.durable:
                continue
            if first:
                entry.durable = True
            elif self._is_durable(entry, path, t_ns, offset_ns, final):
                entry.durable = True
                marks.append(_saved(entry, path, offset_ns, formats.step_in(name)))
        marks += self._tracked(names, t_ns, before_ns, offset_ns, first)
        for gone in self._entries.keys() - names.keys():
            del self._entries[gone]
        self._last_ns = t_ns
        self._scans += 1
        return sorted(marks, key=lambda mark: int(mark["t"]))

    def _names(self) -> dict[str, str]:
        """Names and paths of the entries; the path itself where it is a file."""
        try:
            with os.scandir(self._path) as found:
                names = {}
                for entry in found:
                    # a link to a neighbour is a second name of the same checkpoint
                    if not (entry.is_symlink() and _is_neighbour(entry.path)):
                        names[entry.name] = entry.path
                    if len(names) >= _MOST_ENTRIES:
                        break
                return names
        except NotADirectoryError:
            return {os.path.basename(self._path): self._path}
        except OSError:
            return {}

    def _look(self, name: str, path: str, t_ns: int, before_ns: int, final: bool) -> _Entry | None:
        if name in formats.TRACKERS:
            return None
        entry = self._entries.get(name)
        if entry is not None and entry.durable and entry.print[2] > 1:
            if self._scans % _SETTLED_EVERY and not final:
                return entry  # a whole tree need not be walked every time
            before_ns = entry.looked_ns
        print_ = _print_of(path)
        if print_ is None:
            self._entries.pop(name, None)
            return None
        if entry is None or entry.print != print_:
            entry = self._entries[name] = _Entry(print_, t_ns, before_ns)
        else:
            entry.times += 1
            entry.looked_ns = t_ns
        return entry

    def _is_durable(self, entry: _Entry, path: str, t_ns: int, offset_ns: int, final: bool) -> bool:
        settled = entry.times > 1 and (
            t_ns - (entry.print[0] + offset_ns) >= _SETTLE_NS or t_ns - entry.since_ns >= _FUTURE_SETTLE_NS
        )
        if not settled and not final:
            return False
        return _whole(path, known_only=not settled)

    def _tracked(
        self, names: dict[str, str], t_ns: int, before_ns: int, offset_ns: int, first: bool
    ) -> list[Mark]:
        """A tracker file is written after the checkpoint that it names: no need to wait for it."""
        marks = []
        for tracker in formats.TRACKERS:
            if tracker not in names:
                continue
            try:
                state = os.stat(names[tracker])
                with open(names[tracker], encoding="utf-8", errors="replace") as file:
                    content = file.read(256)
            except OSError:
                continue
            seen = (state.st_mtime_ns, state.st_ino)
            step = formats.step_in_tracker(tracker, content)
            if self._trackers.get(tracker) == seen or not content or step is None:
                continue
            self._trackers[tracker] = seen
            if first or (name := self._untold(step)) is None:
                continue
            at_ns = min(max(state.st_mtime_ns + offset_ns, before_ns), t_ns)
            text = names.get(name, "")
            marks.append({"k": "saved", "t": at_ns, "n": step, "o": "checkpoint", "text": text})
        return marks

    def _untold(self, step: int) -> str | None:
        """The name of the entry that holds ``step``, unless it was reported before. From now on it counts as reported."""
        for name, entry in self._entries.items():
            if formats.step_in(name) == step:
                told, entry.durable = entry.durable, True
                return None if told else name
        return None


def _saved(entry: _Entry, path: str, offset_ns: int, step: int | None) -> Mark:
    # a file may carry an old time (copied, or renamed into place): it was not there one scan before
    at_ns = min(max(entry.print[0] + offset_ns, entry.absent_ns), entry.since_ns)
    mark: Mark = {"k": "saved", "t": at_ns, "o": "checkpoint", "text": path}
    if step is not None:
        mark["n"] = step
    return mark


def _is_neighbour(link: str) -> bool:
    return os.path.dirname(os.path.realpath(link)) == os.path.realpath(os.path.dirname(link))


def _print_of(path: str) -> _Print | None:
    """Size and newest time of a file or of a whole tree; ``None`` when it is gone or empty."""
    try:
        state = os.stat(path)
        if stat.S_ISREG(state.st_mode):
            return (state.st_mtime_ns, state.st_size, 1, state.st_ino) if state.st_size else None
        if not stat.S_ISDIR(state.st_mode):
            return None
        newest, size, files = state.st_mtime_ns, 0, 0
        for _, inside in _walk(path):
            newest = max(newest, inside.st_mtime_ns)
            size += inside.st_size
            files += 1
    except OSError:
        return None
    return (newest, size, files, state.st_ino) if files else None


def _walk(path: str) -> list[tuple[str, os.stat_result]]:
    """The regular files in a tree, bounded in number and depth."""
    found: list[tuple[str, os.stat_result]] = []
    todo = [(path, 0)]
    while todo and len(found) < _MOST_FILES:
        folder, depth = todo.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if depth < _DEEPEST:
                        todo.append((entry.path, depth + 1))
                elif entry.is_file():
                    found.append((entry.path, entry.stat()))
    return found


def _whole(path: str, known_only: bool) -> bool:
    """Whether no file is torn. ``known_only``: a file counts as torn if its format does not show that it is whole."""
    try:
        state = os.stat(path)
        files = _walk(path) if stat.S_ISDIR(state.st_mode) else [(path, state)]
    except OSError:
        return False
    names = [os.path.basename(file) for file, _ in files]
    if any(name.endswith(".distcp") for name in names) and ".metadata" not in names:
        return False
    if all(formats.never_a_checkpoint(name) for name in names):
        return False
    for (file, inside), name in zip(files, names):
        if formats.never_a_checkpoint(name):
            continue
        if formats.in_flux(name) and name != ".metadata":
            if known_only:
                return False
            continue
        whole = formats.whole(file, inside.st_size)
        if whole is False or (whole is None and known_only):
            return False
    return True

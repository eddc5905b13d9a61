"""Output of ranks on other hosts: copied as far as it is needed, so that it is read like that of this machine.

A copy keeps what makes the order of lines: files of a rank by their age, and when each part was printed, which is on the
controller's clock for all hosts.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.engine.local.ranks import rundir
from unidle.engine.local.ranks.rundir import COPY
from unidle.hub.file_parts import NotThere, RankFilePart, whole_file
from unidle.hub.reader import RankFiles
from unidle.view.jobs import AttemptView

if TYPE_CHECKING:
    from collections.abc import Callable

    from unidle.api.open_hosts import HostsOfStore

_FILES_MOST: Final = 64
_TRIES: Final = 5


class HostLogs:
    """The logs of one job, copied from its hosts into a directory of this process.

    ``connect``: to the hosts. Errors: CannotRun where no controller answers.
    """

    def __init__(self, connect: Callable[[], HostsOfStore], job: str) -> None:
        self._job = job
        self._directory = tempfile.TemporaryDirectory(prefix="unidle-logs-")
        self.root = Path(self._directory.name)
        self._ranks: dict[tuple[int, int], RankLogCopy] = {}
        self.missing: dict[int, str] = {}
        """Why nothing can be read of a rank now, by rank."""
        try:
            self._files = connect()
        except BaseException:
            self._directory.cleanup()
            raise

    def renew(self, number: int, attempt: AttemptView, ranks: list[int]) -> None:
        """Copy what is new of these ranks of an attempt."""
        for rank in ranks:
            place = (self._job, number, rank)
            copy = self._ranks.get((number, rank))
            if copy is None:
                directory = Path(rundir.rank_dir(self.root, *place))
                copy = self._ranks[number, rank] = RankLogCopy(
                    self._files, attempt.places[rank].node, place, directory
                )
            try:
                copy.renew()
                self.missing.pop(rank, None)
            except NotThere as error:
                self.missing[rank] = f"{attempt.places[rank].node}: {error}"

    def close(self) -> None:
        self._files.close()
        self._directory.cleanup()


_Key = tuple[int, int]
"""Of a file on the host: its inode, which a later file may get again, and how many bytes were printed before it."""


class RankLogCopy:
    """The log files of one rank. Rotation changes their names only: a copy keeps its file, and gets the new name."""

    def __init__(self, files: RankFiles, node: str, place: tuple[str, int, int], directory: Path) -> None:
        self._files, self._node, self._place, self._directory = files, node, place, directory
        self._copies: dict[_Key, int] = {}  # inodes of the copies, the oldest file first
        directory.mkdir(parents=True)

    def renew(self) -> None:
        """Errors: NotThere."""
        for _ in range(_TRIES):
            if self._renewed():
                return
        raise NotThere("its files change faster than they can be read")

    def _renewed(self) -> bool:
        """Copy once; False where files were rotated meanwhile."""
        shown = self._times()
        begins = _begins(shown)
        if shown.startswith(COPY) and self._copies:
            return self._add_rest(_counts(shown))
        found = self._named(begins)
        if begins and any(key[0] not in begins for key, _ in found.values()):
            return False  # other files than a moment ago
        self._move({key: name for name, (key, _) in found.items()})
        for name, (key, part) in found.items():
            if not self._continued(name, key, part):
                return False
        times = self._times()
        if _begins(times) != begins:
            return False
        self._write_times(times)
        return True

    def _add_rest(self, counts: dict[int, tuple[int, int]]) -> bool:
        """The host has lost its files, and what was kept of them is not the same files: add what follows on the copy."""
        for name in (f"{rundir.LOG}.1", rundir.LOG):
            try:
                part = self._files.part(self._node, self._place, name, 0)
                if part.inode not in counts:
                    return False
                lines, begin = counts[part.inode]
                newest = next(reversed(self._copies))
                log = self._directory / rundir.LOG
                end = newest[1] + log.stat().st_size
                if begin + part.size_bytes <= end:
                    continue
                data = whole_file(partial(self._files.part, self._node, self._place, name))
            except NotThere:
                continue
            if begin > end:
                self._add_file((part.inode, begin), lines, data)
            else:
                with log.open("ab") as file:
                    file.write(data[end - begin :])
        return True

    def _add_file(self, key: _Key, lines: int, data: bytes) -> None:
        """Begin another file, as rotation does: what was printed between it and the newest is dropped."""
        log = self._directory / rundir.LOG
        for number in sorted(
            (int(path.suffix[1:]) for path in self._directory.glob(f"{rundir.LOG}.[0-9]*")), reverse=True
        ):
            log.with_name(f"{rundir.LOG}.{number}").rename(log.with_name(f"{rundir.LOG}.{number + 1}"))
        log.rename(log.with_name(f"{rundir.LOG}.1"))
        log.write_bytes(data)
        self._copies[key] = log.stat().st_ino
        with (self._directory / rundir.TIMES).open("ab") as file:
            file.write(b"F %d %d %d 0\n" % (self._copies[key], lines, key[1]))

    def _named(self, begins: dict[int, int]) -> dict[str, tuple[_Key, RankFilePart]]:
        """Each file under its name on the host, with what follows on its copy; the oldest first."""
        paths = {path.stat().st_ino: path for path in self._directory.iterdir()}
        sizes = {key: paths[copy].stat().st_size for key, copy in self._copies.items() if copy in paths}
        found: dict[str, tuple[_Key, RankFilePart]] = {}
        offset = sizes.get(next(reversed(self._copies), (0, 0)), 0)
        for number in range(_FILES_MOST):
            name = f"{rundir.LOG}.{number}" if number else rundir.LOG
            try:
                part = self._files.part(self._node, self._place, name, offset)
                key = part.inode, begins.get(part.inode, 0)
                if offset != (known := sizes.get(key, 0)):
                    part = self._files.part(self._node, self._place, name, known)
            except NotThere:
                if not number:
                    raise
                break
            found[name] = key, part
            offset = 0
        return dict(reversed(found.items()))

    def _move(self, names: dict[_Key, str]) -> None:
        """Give each copy the name that its file has on the host; copies of files that rotation dropped go."""
        paths = {path.stat().st_ino: path for path in self._directory.iterdir()}
        moved = []
        for key, copy in list(self._copies.items()):
            path = paths.get(copy)
            if key not in names or path is None:
                del self._copies[key]
                if path is not None:
                    path.unlink()
            elif path.name != names[key]:
                moved.append((path.rename(path.with_name(f"{path.name}.moving")), names[key]))
        for path, name in moved:
            path.rename(self._directory / name)

    def _continued(self, name: str, key: _Key, part: RankFilePart) -> bool:
        """Append what the host has beyond the copy; False where the file under this name is another one by now."""
        if part.inode != key[0]:
            return False
        with (self._directory / name).open("ab") as file:
            self._copies.setdefault(key, os.fstat(file.fileno()).st_ino)
            while True:
                file.write(part.data)
                if not part.data or file.tell() >= part.size_bytes:
                    return True
                part = self._files.part(self._node, self._place, name, file.tell())
                if part.inode != key[0]:
                    return False

    def _times(self) -> bytes:
        try:
            return self._files.whole(self._node, self._place, f"{rundir.LOG}.times")
        except NotThere:
            return b""  # not kept: an older version, or a full disk

    def _write_times(self, times: bytes) -> None:
        """Times of lines stand under the inodes of the host: here under those of the copies."""
        copies = {inode: copy for (inode, _), copy in self._copies.items()}
        kept: list[bytes] = []
        is_known = False
        for line in times.splitlines(keepends=True):
            if line.startswith(b"F "):
                _, inode, *rest = line.split(b" ")
                is_known = int(inode) in copies
                line = b" ".join([b"F", b"%d" % copies.get(int(inode), 0), *rest])
            if is_known:
                kept.append(line)
        draft = self._directory / f"{rundir.LOG}.times.new"
        draft.write_bytes(b"".join(kept))
        draft.replace(self._directory / f"{rundir.LOG}.times")


def _begins(times: bytes) -> dict[int, int]:
    """Bytes that were printed before each file, by its inode."""
    return {inode: begin for inode, (_, begin) in _counts(times).items()}


def _counts(times: bytes) -> dict[int, tuple[int, int]]:
    """Lines and bytes that were printed before each file, by its inode."""
    found = (line.split(b" ") for line in times.splitlines() if line.startswith(b"F "))
    return {int(inode): (int(lines), int(before)) for _, inode, lines, before, *_ in found}

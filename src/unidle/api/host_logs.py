"""Output of ranks on other hosts: copied as far as it is needed, so that it is read like that of this machine.

A copy keeps what makes the order of lines: files of a rank by their age, and when each part was printed, which is on the
controller's clock for all hosts.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from unidle.engine.local.ranks import rundir
from unidle.hub.reader import FetchedPart, HostFiles, NotThere
from unidle.view.jobs import AttemptView

_FILES_MOST: Final = 64
_TRIES: Final = 5


class HostLogs:
    """The logs of one job, copied from its hosts into a directory of this process.

    ``state``: the store's directory. Errors: CannotRun where no controller answers.
    """

    def __init__(self, state: Path, job: str) -> None:
        self._job = job
        self._directory = tempfile.TemporaryDirectory(prefix="unidle-logs-")
        self.root = Path(self._directory.name)
        self._ranks: dict[tuple[int, int], _RankCopy] = {}
        self.missing: dict[int, str] = {}
        """Why nothing can be read of a rank now, by rank."""
        try:
            self._files = HostFiles(state)
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
                copy = self._ranks[number, rank] = _RankCopy(
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


class _RankCopy:
    """The log files of one rank. A file is known by its inode on the host: rotation changes names only."""

    def __init__(self, files: HostFiles, node: str, place: tuple[str, int, int], directory: Path) -> None:
        self._files, self._node, self._place, self._directory = files, node, place, directory
        self._known: dict[int, int] = {}  # inode there -> inode here
        directory.mkdir(parents=True)

    def renew(self) -> None:
        """Errors: NotThere."""
        for _ in range(_TRIES):
            if self._renewed():
                return
        raise NotThere("its files change faster than they can be read")

    def _renewed(self) -> bool:
        """Copy once; False where files were rotated meanwhile."""
        found = self._named()
        for name, part in found.items():
            if not self._continued(name, part):
                return False
        gone = set(self._known) - {part.inode for part in found.values()}
        for inode in gone:
            del self._known[inode]
        self._copy_times()
        return True

    def _named(self) -> dict[str, FetchedPart]:
        """The newest bytes of each file, the oldest file first. What is known is moved to its name here."""
        found: dict[str, FetchedPart] = {}
        here = {inode: path for path in self._directory.glob("log*") for inode in [path.stat().st_ino]}
        sizes = {there: here[local].stat().st_size for there, local in self._known.items() if local in here}
        offset = sizes.get(self._newest, 0)
        for number in range(_FILES_MOST):
            name = f"{rundir.LOG}.{number}" if number else rundir.LOG
            try:
                part = self._files.part(self._node, self._place, name, offset)
            except NotThere:
                if not number:
                    raise
                break
            if offset != sizes.get(part.inode, 0):
                offset = sizes.get(part.inode, 0)
                part = self._files.part(self._node, self._place, name, offset)
            found[name] = part
            offset = 0
        self._move({part.inode: name for name, part in found.items()}, here)
        return dict(reversed(found.items()))

    @property
    def _newest(self) -> int:
        return next(reversed(self._known), 0)

    def _move(self, names: dict[int, str], here: dict[int, Path]) -> None:
        """Give each file that is known the name that it has on the host; those that rotation dropped go."""
        moved = []
        for there, local in self._known.items():
            if (path := here.get(local)) is None:
                continue
            if there not in names:
                path.unlink()
            elif path.name != names[there]:
                moved.append((path.rename(path.with_name(f"{path.name}.moving")), names[there]))
        for path, name in moved:
            path.rename(self._directory / name)

    def _continued(self, name: str, part: FetchedPart) -> bool:
        """Append what the host has beyond the copy; False where the file under this name is another one by now."""
        path = self._directory / name
        with path.open("ab") as file:
            self._known.setdefault(part.inode, os.fstat(file.fileno()).st_ino)
            while True:
                file.write(part.data)
                if not part.data or file.tell() >= part.size_bytes:
                    return True
                following = self._files.part(self._node, self._place, name, file.tell())
                if following.inode != part.inode:
                    return False
                part = following

    def _copy_times(self) -> None:
        """Times of lines stand under the inodes of the host: here under those of the copies."""
        try:
            lines = self._files.whole(self._node, self._place, f"{rundir.LOG}.times").splitlines(
                keepends=True
            )
        except NotThere:
            return
        kept: list[bytes] = []
        is_known = False
        for line in lines:
            words = line.split(b" ")
            if words[0] == b"F" and len(words) > 1 and words[1].isdigit():
                local = self._known.get(int(words[1]))
                is_known = local is not None
                line = b" ".join([b"F", b"%d" % (local or 0), *words[2:]])
            if is_known:
                kept.append(line)
        draft = self._directory / f"{rundir.LOG}.times.new"
        draft.write_bytes(b"".join(kept))
        draft.replace(self._directory / f"{rundir.LOG}.times")

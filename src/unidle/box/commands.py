"""Carries out the commands of the hub. Each command is answered once, and can be repeated, reordered and late."""

from __future__ import annotations

import base64
import os
import stat

from unidle import wire
from unidle.boot import boottime_ns
from unidle.box.attempts import CannotDo, HeldAttempts
from unidle.box.job_saves import PreparedSaves
from unidle.box.lease import BoxLease
from unidle.box.settings import BoxSettings
from unidle.engine.local.ranks import rundir

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 512 * 1024  # of a file in one answer: in base64 it fits into a frame
_MOST = 1 << 53
COMMANDS = (wire.PREPARE, wire.START, wire.STOP, wire.RELEASE, wire.READ)


class HubCommands:
    """``ending``: the box takes no new ranks, because it was asked to end."""

    def __init__(self, settings: BoxSettings, lease: BoxLease, attempts: HeldAttempts) -> None:
        self._settings, self._lease, self._attempts = settings, lease, attempts
        self.ending = False
        self.interface = ""

    def answer(self, frame: dict[str, Any]) -> dict[str, Any]:
        """The ``done`` frame for a command. Errors: wire.Malformed where the frame is not as agreed."""
        number = whole(frame, "id")
        done: dict[str, Any] = {"f": wire.DONE, "id": number, "ok": True, "why": "", "data": {}}
        try:
            done["data"] = self._carry_out(frame)
        except (CannotDo, OSError) as error:
            done["ok"], done["why"] = False, str(error)[:4000]
        return done

    def _carry_out(self, frame: dict[str, Any]) -> dict[str, Any]:
        name, attempt = frame["f"], whole(frame, "attempt")
        if name == wire.READ:
            return self._read(frame, attempt)
        if not self._lease.accept(whole(frame, "fence")):
            raise CannotDo(wire.FENCED)
        if name == wire.RELEASE:
            if not self._attempts.is_released(attempt):
                self._attempts.release(attempt)
            return {}
        if self._attempts.is_released(attempt):
            if name == wire.STOP:
                return {}  # all of it has ended
            raise CannotDo("the attempt was released")
        if name == wire.STOP:
            for rank in _ranks(frame):
                self._attempts.stop(attempt, rank, whole(frame, "grace_ns", 0, most=1 << 62))
            return {}
        self._may_start()
        if name == wire.PREPARE:
            saves = None if frame.get("saves") is None else PreparedSaves(frame["saves"])
            data = self._attempts.prepare(attempt, saves, leader=frame.get("leader") is True)
            return {**data, "interface": self.interface} if self.interface else data
        return self._start(frame, attempt)

    def _may_start(self) -> None:
        if self.ending:
            raise CannotDo("the box ends")
        if not self._lease.holds(boottime_ns()):
            raise CannotDo("the lease of the box is over")

    def _start(self, frame: dict[str, Any], attempt: int) -> dict[str, Any]:
        """Start each rank, whatever becomes of the others: the first reason is the answer's."""
        ranks = frame.get("ranks")
        if not isinstance(ranks, list) or not all(isinstance(entry, dict) for entry in ranks):
            raise wire.Malformed("start: ranks is no list of objects")
        wanted = [(whole(entry, "rank"), entry) for entry in ranks]
        why = ""
        for rank, entry in sorted(wanted, key=lambda pair: pair[0]):
            try:
                self._attempts.start(attempt, rank, entry.get("orders"), leader=entry.get("leader") is True)
            except (CannotDo, OSError) as error:
                why = why or str(error)
        if why:
            raise CannotDo(why)
        return {}

    def _read(self, frame: dict[str, Any], attempt: int) -> dict[str, Any]:
        """Part of a file of a rank, of this attempt or any earlier one."""
        name = frame.get("file")
        if not isinstance(name, str) or not rundir.is_shown(name):
            raise CannotDo("there is no such file to be read")
        job = self._settings.job
        directory = rundir.rank_dir(self._settings.runs, job, attempt, whole(frame, "rank"))
        offset, count = frame.get("offset", 0), whole(frame, "bytes", 65536)
        if type(offset) is not int:
            raise wire.Malformed("read: offset is no whole number")
        fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise CannotDo("it is no file")
            begin = min(offset, status.st_size) if offset >= 0 else max(0, status.st_size + offset)
            data = os.pread(fd, min(count, READ_BYTES), begin)
        finally:
            os.close(fd)
        text = base64.b64encode(data).decode("ascii")
        return {"text": text, "size": status.st_size, "offset": begin, "inode": status.st_ino}


def whole(frame: dict[str, Any], field: str, default: int | None = None, most: int = _MOST) -> int:
    """A number of a frame that is not below 0. Errors: wire.Malformed."""
    value = frame.get(field, default)
    if type(value) is not int or not 0 <= value <= most:
        raise wire.Malformed(f"{frame.get('f', 'rank')}: {field} is no whole number")
    return value


def by_rank(frame: dict[str, Any], field: str) -> dict[int, int]:
    """Numbers of a ``resume`` by rank. Errors: wire.Malformed."""
    found = frame.get(field, {})
    if not isinstance(found, dict) or not all(rank.isascii() and rank.isdigit() for rank in found):
        raise wire.Malformed(f"resume: {field} is no object of ranks")
    return {int(rank): whole(found, rank) for rank in found}


def _ranks(frame: dict[str, Any]) -> list[int]:
    ranks = frame.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int and 0 <= rank < _MOST for rank in ranks):
        raise wire.Malformed("stop: ranks is no list of whole numbers")
    return ranks

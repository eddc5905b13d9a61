"""Profiles of the past: the windows that continuous mode kept of a job, as one profile."""

from __future__ import annotations

from dataclasses import dataclass, field

from unidle.errors import BadInput
from unidle.scope.continuous import windows
from unidle.scope.merge import merge
from unidle.scope.model import Profile
from unidle.store.profiles import ProfileInfo, ProfileRow, ProfileShelf

Side = tuple[int, int]  # attempt and rank


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """Which windows: those of a job that overlap ``[since_ns, until_ns)`` on the log's clock, of an attempt, of a rank."""

    job: str
    since_ns: int
    until_ns: int
    attempt: int | None = None
    rank: int | None = None

    def takes(self, info: ProfileInfo | ProfileRow) -> bool:
        return self.attempt in (None, info.attempt) and self.rank in (None, info.rank)


@dataclass(frozen=True, slots=True)
class PastProfile:
    """What was kept. ``looks``: how many looks are in it; ``start_ns`` and ``end_ns``: of the first and the last one.

    ``damaged``: windows that could not be read. Windows that were put together cannot be cut again, so the first and the
    last may reach beyond what was asked for.
    """

    profile: Profile | None
    looks: int = 0
    start_ns: int = 0
    end_ns: int = 0
    sides: tuple[Side, ...] = ()
    damaged: int = 0

    @property
    def attempts(self) -> tuple[int, ...]:
        return tuple(sorted({attempt for attempt, _ in self.sides}))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for _, rank in self.sides}))


def read(shelf: ProfileShelf, wanted: WindowQuery) -> PastProfile:
    """What was kept of it; a ``profile`` of nothing where that is nothing."""
    before = shelf.damaged
    found = _Sum()
    for info in shelf.infos_between(wanted.job, wanted.since_ns, wanted.until_ns):
        if wanted.takes(info) and (row := shelf.row(info.key)) is not None:
            found.add(row)
    return found.past(shelf.damaged - before)


@dataclass(slots=True)
class _Sum:
    """Windows as they come: of each attempt, those of one look side by side."""

    # by attempt, host and start
    _windows: dict[int, dict[int, dict[int, list[Profile]]]] = field(default_factory=dict)
    _looks: dict[tuple[int, int], int] = field(default_factory=dict)
    _sides: set[Side] = field(default_factory=set)
    _start_ns: int | None = None
    _end_ns: int = 0
    _unread: int = 0

    def add(self, row: ProfileRow) -> None:
        try:
            profile = windows.unpacked(row.body)
        except BadInput:
            self._unread += 1
            return
        hosts = self._windows.setdefault(row.attempt, {})
        hosts.setdefault(windows.host_of(profile), {}).setdefault(row.start_ns, []).append(profile)
        key = (row.attempt, row.rank)
        self._looks[key] = self._looks.get(key, 0) + row.looks
        self._sides.add(key)
        self._start_ns = row.start_ns if self._start_ns is None else min(self._start_ns, row.start_ns)
        self._end_ns = max(self._end_ns, row.end_ns)

    def past(self, damaged: int) -> PastProfile:
        damaged += self._unread
        if self._start_ns is None:
            return PastProfile(None, damaged=damaged)
        each = {
            attempt: [
                _at_once([windows.together([found[at] for at in sorted(found)]) for found in hosts.values()])
            ]
            for attempt, hosts in sorted(self._windows.items())
        }
        profile = windows.together([[one] for one in windows.apart(each)])
        # ranks of one attempt are looked at together, so the one that was looked at most often has seen all looks
        most: dict[int, int] = {}
        for (attempt, _), looks in self._looks.items():
            most[attempt] = max(most.get(attempt, 0), looks)
        sides = tuple(sorted(self._sides))
        return PastProfile(profile, sum(most.values()), self._start_ns, self._end_ns, sides, damaged)


def _at_once(hosts: list[Profile]) -> Profile:
    """The windows of each host of an attempt, as if all began at the same time: hosts look whenever they are due."""
    begin_ns = min(one.start_ns for one in hosts)
    return merge([windows.shifted(one, begin_ns - one.start_ns) for one in hosts])

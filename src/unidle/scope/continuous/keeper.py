"""Keeps windows within a bound of bytes: the oldest ones are put together, and when that is done, dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from unidle.errors import BadInput, StoreError
from unidle.fleet.policies import ProfilePolicy
from unidle.scope.continuous import windows
from unidle.scope.model import Profile
from unidle.store.profiles import Held, ProfileInfo, ProfileRow, ProfileShelf

LOOKS_MOST: Final = 60  # in one window: an hour at one look a minute
FIT: Final = 0.9  # of the bound is left full, so that not every look has to make room
MERGES_MOST: Final = 32  # at a time: each costs some milliseconds
SWEEP_EVERY_NS: Final = 600_000_000_000
_PAGE: Final = 4096


class Keeper:
    """Writes windows to a shelf, and keeps them within the policy's bounds. One per store; see :class:`ProfileShelf`.

    The size of all rows is counted once at the start and updated from then on: there is no other writer.
    """

    def __init__(self, shelf: ProfileShelf, policy: ProfilePolicy) -> None:
        self._shelf, self._policy = shelf, policy
        self._held: dict[str, Held] | None = None
        self._swept_ns: int | None = None

    @property
    def n_bytes(self) -> int:
        """What all rows take now."""
        return sum(held.n_bytes for held in self._counted().values())

    def keep(self, rows: Sequence[ProfileRow], now_ns: int) -> None:
        """Add rows, then make room. Errors: :class:`StoreError`; what was kept before stays."""
        try:
            if self._swept_ns is None or abs(now_ns - self._swept_ns) >= SWEEP_EVERY_NS:
                self._sweep(now_ns)
            held = self._counted()
            self._shelf.add(rows)
            for row in rows:
                before = held.get(row.job, Held(0, row.start_ns))
                held[row.job] = Held(before.n_bytes + len(row.body), min(before.oldest_ns, row.start_ns))
            for job in {row.job for row in rows}:
                if held[job].n_bytes > self._policy.job_most_bytes:
                    self._shrink(job, int(self._policy.job_most_bytes * FIT))
            if self.n_bytes > self._policy.most_bytes:
                self._shrink_all()
        except StoreError:
            self._held = None  # how far it came is not known: count again
            raise

    def _counted(self) -> dict[str, Held]:
        if self._held is None:
            self._held = self._shelf.held()
        return self._held

    def _sweep(self, now_ns: int) -> None:
        if self._shelf.drop_before(now_ns - self._policy.keep_ns):
            self._held = None
        self._swept_ns = now_ns

    def _shrink_all(self) -> None:
        """Make room from the jobs whose windows are oldest on."""
        held = self._counted()
        over = self.n_bytes - int(self._policy.most_bytes * FIT)
        for job in sorted(held, key=lambda name: held[name].oldest_ns):
            if over <= 0:
                return
            before = held[job].n_bytes
            self._shrink(job, max(before - over, 0))
            over -= before - (held[job].n_bytes if job in held else 0)

    def _shrink(self, job: str, most_bytes: int) -> None:
        """Put a job's oldest windows together until it takes ``most_bytes``, and drop the oldest where that is not enough."""
        self._merge_oldest(job, most_bytes)
        while (held := self._counted().get(job)) is not None and held.n_bytes > most_bytes:
            page = self._shelf.infos(job, _PAGE)
            if not page:
                self._counted().pop(job)
                return
            gone: list[ProfileInfo] = []
            left = held.n_bytes
            for info in page:
                if left <= most_bytes:
                    break
                gone.append(info)
                left -= info.n_bytes
            self._change(job, gone, ())

    def _merge_oldest(self, job: str, most_bytes: int) -> None:
        for pair in _pairs(self._shelf.infos(job, _PAGE))[:MERGES_MOST]:
            if self._counted()[job].n_bytes <= most_bytes:
                return
            rows = [row for info in pair if (row := self._shelf.row(info.key)) is not None]
            self._change(job, pair, [one_row(rows)] if rows else ())

    def _change(self, job: str, old: Iterable[ProfileInfo], new: Sequence[ProfileRow]) -> None:
        old = list(old)
        self._shelf.replace([info.key for info in old], new)
        held = self._counted()
        n_bytes = held[job].n_bytes - sum(i.n_bytes for i in old) + sum(len(row.body) for row in new)
        first = self._shelf.infos(job, 1)
        if first:
            held[job] = Held(max(n_bytes, 0), first[0].start_ns)
        else:
            held.pop(job)


def one_row(rows: Sequence[ProfileRow]) -> ProfileRow:
    """Windows of one rank as one; those that cannot be read are left out, where any can."""
    profiles: list[list[Profile]] = []
    for row in rows:
        try:
            profiles.append([windows.unpacked(row.body)])
        except BadInput:
            continue
    first = rows[0]
    body = windows.packed(windows.small(windows.together(profiles))) if profiles else first.body
    return ProfileRow(
        first.job, first.start_ns, first.attempt, first.rank, max(row.end_ns for row in rows),
        sum(row.looks for row in rows), body,
    )  # fmt: skip


def _pairs(infos: Sequence[ProfileInfo]) -> list[tuple[ProfileInfo, ProfileInfo]]:
    """Neighbours of one rank that may be put together, the oldest first; none is in two pairs."""
    found: list[tuple[ProfileInfo, ProfileInfo]] = []
    by_rank = attrgetter("attempt", "rank")
    for _, group in groupby(sorted(infos, key=lambda i: (i.attempt, i.rank, i.start_ns)), key=by_rank):
        before: ProfileInfo | None = None
        for info in group:
            if before is not None and before.looks + info.looks <= LOOKS_MOST:
                found.append((before, info))
                before = None
            else:
                before = info
    return sorted(found, key=lambda pair: (pair[0].start_ns, pair[0].rank))

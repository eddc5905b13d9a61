"""Not the same twice, and no storms: what is reported about many changes. Pure; the time is an argument.

Each channel has a deduplicator of its own, since each has its own choice of kinds and its own window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from unidle.notices.model import Notice, iso, notice_id

BURST: Final = 20
"""So many notices are reported one by one within :data:`PERIOD_NS`; what comes on top is summed up."""
PERIOD_NS: Final = 60_000_000_000
STORM: Final = "many changes at once"
STORM_KEPT: Final = 256
KEYS_KEPT: Final = 4096
"""Of more subjects than these within a window the oldest are forgotten: they may be reported twice."""
SUBJECTS_NAMED: Final = 50
_RANKS: Final = ("info", "warning", "critical")


class Key(msgspec.Struct):
    """What was reported about one subject and kind. ``told``: state -> when; ``held`` waits for the window's end."""

    told: dict[str, int]
    state: str
    held: Notice | None = None


class Deduplicator(msgspec.Struct):
    """What one channel has to remember so as to report nothing twice and to sum up storms."""

    window_ns: int
    keys: dict[str, Key] = {}
    held_ns: int | None = None  # when the first of what is held is due
    prune_ns: int = 0  # when to forget what is older than the window
    period_ns: int = 0  # when the current period began
    told: int = 0  # one by one in it
    storm: dict[str, Notice] = {}  # of each subject and kind the last one, with its count
    calm: bool = True

    def add(self, notice: Notice) -> list[Notice]:
        """What is to be sent now that ``notice`` is known; it may be sent later, by :meth:`due`."""
        found = list(self.due(notice.time_ns))
        name, now_ns = _key(notice), notice.time_ns
        key = self.keys.get(name)
        if key is None:
            if len(self.keys) >= KEYS_KEPT:
                del self.keys[
                    next((old for old, one in self.keys.items() if one.held is None), next(iter(self.keys)))
                ]
            self.keys[name] = Key({notice.state: now_ns}, notice.state)
        elif (again_ns := self._again_ns(key, notice.state)) > now_ns:
            key.held = _with_count(notice, key.held)
            self.held_ns = again_ns if self.held_ns is None else min(self.held_ns, again_ns)
            return found
        else:
            notice, key.held = _with_count(notice, key.held), None
            key.told[notice.state], key.state = now_ns, notice.state
        return [*found, *self._limited(notice)]

    def due(self, now_ns: int) -> Iterator[Notice]:
        """What has waited long enough."""
        if self.held_ns is not None and self.held_ns <= now_ns:
            yield from self._held_long_enough(now_ns)
        if self.prune_ns <= now_ns:
            self.prune_ns = now_ns + self.window_ns
            self.keys = {
                name: key
                for name, key in self.keys.items()
                if key.held is not None or now_ns - max(key.told.values()) < self.window_ns
            }
        yield from self._end_of_period(now_ns)

    def next_ns(self) -> int | None:
        """When :meth:`due` may have something."""
        if not self.storm:
            return self.held_ns
        end_ns = self.period_ns + PERIOD_NS
        return end_ns if self.held_ns is None else min(self.held_ns, end_ns)

    def _again_ns(self, key: Key, state: str) -> int:
        """From when on the state may be sent again."""
        at_ns = key.told.get(state)
        return 0 if at_ns is None else at_ns + self.window_ns

    def _held_long_enough(self, now_ns: int) -> Iterator[Notice]:
        self.held_ns, held_keys = None, [key for key in self.keys.values() if key.held is not None]
        for key in held_keys:
            held = key.held
            if held is None:
                continue
            again_ns = self._again_ns(key, held.state)
            if again_ns > now_ns:
                self.held_ns = again_ns if self.held_ns is None else min(self.held_ns, again_ns)
                continue
            key.held = None
            if held.state != key.state:  # else it is as it was reported
                key.told[held.state], key.state = now_ns, held.state
                yield from self._limited(held, now_ns)

    def _limited(self, notice: Notice, now_ns: int | None = None) -> Iterator[Notice]:
        now_ns = notice.time_ns if now_ns is None else now_ns
        yield from self._end_of_period(now_ns)
        if self.calm and self.told < BURST:
            if not self.told:
                self.period_ns = now_ns
            self.told += 1
            yield notice
            return
        name = _key(notice)
        self.storm[name] = _with_count(notice, self.storm.pop(name, None))
        if len(self.storm) > STORM_KEPT:
            self.storm = {"": summary(list(self.storm.values()), STORM)}

    def _end_of_period(self, now_ns: int) -> Iterator[Notice]:
        if now_ns - self.period_ns < PERIOD_NS:
            return
        summed, self.storm = list(self.storm.values()), {}
        self.period_ns, self.told = now_ns, 0
        self.calm = sum(one.count for one in summed) <= BURST  # else what follows is summed up at once
        if summed:
            yield summed[0] if len(summed) == 1 else summary(summed, STORM)


def summary(notices: list[Notice], why: str) -> Notice:
    """One notice in place of many; ``notices`` in the order in which they came, at least one."""
    counts: Counter[str] = Counter()
    subjects: dict[str, None] = {}
    for one in notices:
        counts.update(one.counts or {f"{one.kind} {one.state}": one.count})
        subjects.update(dict.fromkeys(one.subjects or [one.subject]))
    last, total = notices[-1], counts.total()
    most = ", ".join(f"{count} {what}" for what, count in counts.most_common(5))
    rest = f" and {len(counts) - 5} more kinds" if len(counts) > 5 else ""
    return Notice(
        id=notice_id("summary", total, *(one.id for one in notices)), seq=last.seq, time_ns=last.time_ns,
        time=iso(last.time_ns), kind="summary", state="summary",
        severity=max((one.severity for one in notices), key=_RANKS.index), subject="fleet",
        text=f"{total} changes ({why}): {most}{rest}", count=total, counts=dict(counts),
        subjects=list(subjects)[:SUBJECTS_NAMED],
    )  # fmt: skip


def _key(notice: Notice) -> str:
    return f"{notice.subject} {notice.kind} {notice.attempt if notice.kind == 'verdict' else ''}"


def _with_count(notice: Notice, before: Notice | None) -> Notice:
    if before is None:
        return notice
    return msgspec.structs.replace(notice, count=notice.count + before.count)

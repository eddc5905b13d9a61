"""Not the same twice, and no storms: what is told of many changes. Pure; the time is an argument.

Each channel has a temper of its own, since each has its own choice of kinds and its own window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from unidle.notices.model import Notice, iso, notice_id

BURST: Final = 20
"""So many notices are told one by one within :data:`PERIOD_NS`; what comes on top is summed up."""
PERIOD_NS: Final = 60_000_000_000
SUBJECTS_NAMED: Final = 50
_RANKS: Final = ("info", "warning", "critical")


class Key(msgspec.Struct):
    """What was told of one subject and kind. ``told``: state -> when; ``held`` waits for the window's end."""

    told: dict[str, int]
    state: str
    held: Notice | None = None


class Temper(msgspec.Struct):
    """What one channel has to remember so as to tell nothing twice and to sum up storms."""

    window_ns: int
    keys: dict[str, Key] = {}
    period_ns: int = 0  # when the current period began
    told: int = 0  # one by one in it
    storm: list[Notice] = []  # of each subject and kind the last one, with its count
    calm: bool = True

    def add(self, notice: Notice) -> list[Notice]:
        """What is to be told now that ``notice`` is known; it may be told later, by :meth:`due`."""
        found = list(self.due(notice.time_ns))
        name = _key(notice)
        key = self.keys.get(name)
        if key is None:
            self.keys[name] = Key({notice.state: notice.time_ns}, notice.state)
        elif notice.time_ns - key.told.get(notice.state, -self.window_ns) < self.window_ns:
            key.held = _with_count(notice, key.held)
            return found
        else:
            notice, key.held = _with_count(notice, key.held), None
            key.told[notice.state], key.state = notice.time_ns, notice.state
        return [*found, *self._limited(notice)]

    def due(self, now_ns: int) -> Iterator[Notice]:
        """What has waited long enough."""
        for name in list(self.keys):
            key = self.keys[name]
            key.told = {s: at for s, at in key.told.items() if now_ns - at < self.window_ns}
            held = key.held
            if held is not None and held.state not in key.told:
                key.held = None
                if held.state != key.state:  # else it is as it was told to be
                    key.told[held.state], key.state = now_ns, held.state
                    yield from self._limited(held)
            if not key.told and key.held is None:
                del self.keys[name]
        yield from self._end_of_period(now_ns)

    def next_ns(self) -> int | None:
        """When :meth:`due` may have something."""
        times = [key.told[key.held.state] + self.window_ns for key in self.keys.values() if key.held is not None
                 and key.held.state in key.told]  # fmt: skip
        if self.storm:
            times.append(self.period_ns + PERIOD_NS)
        return min(times, default=None)

    def _limited(self, notice: Notice) -> Iterator[Notice]:
        yield from self._end_of_period(notice.time_ns)
        if self.calm and self.told < BURST:
            if not self.told:
                self.period_ns = notice.time_ns
            self.told += 1
            yield notice
            return
        same = next((k for k, one in enumerate(self.storm) if _key(one) == _key(notice)), None)
        if same is None:
            self.storm.append(notice)
        else:
            self.storm.append(_with_count(notice, self.storm.pop(same)))

    def _end_of_period(self, now_ns: int) -> Iterator[Notice]:
        if now_ns - self.period_ns < PERIOD_NS:
            return
        summed, self.storm = self.storm, []
        self.period_ns, self.told = now_ns, 0
        self.calm = sum(one.count for one in summed) <= BURST  # else what follows is summed up at once
        if summed:
            yield summed[0] if len(summed) == 1 else summary(summed, "many changes at once")


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

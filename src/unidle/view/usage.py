"""Past use of queues: averages whose weights halve every half-life.

Kept by the fold. A change of a queue's use costs O(1), and between two changes nothing is computed, so
that an average follows from the log alone, however it is folded. All is in integers, for the same
result on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import Final

import msgspec

from unidle.jobs import JobSpec
from unidle.share.select import the_model

PPB: Final = 1_000_000_000
PPM: Final = 1_000_000
_BITS: Final = 30  # of the part of a half-life: far below a nanosecond's worth of decay
_CHUNK: Final = 10  # bits that are looked up at once
_ONE: Final = 1 << 60


@lru_cache(maxsize=1)
def _tables() -> tuple[tuple[int, ...], ...]:
    """``2 ** -(k / 2 ** bits)`` for each chunk of bits, the highest first, in units of 2 ** -60."""
    roots = [isqrt((_ONE >> 1) * _ONE)]  # 2 ** -(2 ** -n) for n = 1, 2, ...
    while len(roots) < _BITS:
        roots.append(isqrt(roots[-1] * _ONE))
    tables = []
    for first in range(0, _BITS, _CHUNK):
        found = [_ONE]
        for root in reversed(roots[first : first + _CHUNK]):
            found += [value * root >> 60 for value in found]
        tables.append(tuple(found))
    return tuple(tables)


def decay_ppb(past_ns: int, half_life_ns: int) -> int:
    """``2 ** -(past / half-life)`` in billionths: how much of an average stands after ``past_ns``."""
    halves, rest_ns = divmod(past_ns, half_life_ns)
    if halves >= _BITS:
        return 0
    part = (rest_ns << _BITS) // half_life_ns
    high, middle, low = _tables()
    keep = high[part >> 20] * middle[part >> 10 & 1023] >> 60
    keep = keep * low[part & 1023] >> 60
    return (keep * PPB + (_ONE >> 1) >> 60) >> halves


def milli_of(share_ppm: int) -> int:
    """Thousandths of a device that a slice counts: rounded down, so that three thirds are no more than one."""
    return max(1, share_ppm // 1_000)


def charged(spec: JobSpec, kind: str, milli: int, models: tuple[str, ...]) -> dict[str, int]:
    """The charge to a job's queue, in thousandths by resource, for ``milli`` thousandths of devices.

    Devices count by their kind, and as ``kind:MODEL`` too where what the job names means just one of the fleet's ``models``.
    """
    names = spec.where.models.include
    model = the_model(names, models) if names else None
    return {kind: milli} if model is None else {kind: milli, f"{kind}:{model}": milli}


class QueueUse(msgspec.Struct, array_like=True):
    """One queue that takes jobs: thousandths used since ``since_ns``, and the average up to then in billionths."""

    since_ns: int
    used_milli: dict[str, int] = {}
    past_ppb: dict[str, int] = {}  # of a device or core, by resource

    def average_ppb(self, now_ns: int, half_life_ns: int) -> dict[str, int]:
        """The average use up to ``now_ns``, by resource, in billionths of a device or core."""
        if now_ns <= self.since_ns:
            return dict(self.past_ppb)
        keep = decay_ppb(now_ns - self.since_ns, half_life_ns)
        gain, used = PPM * (PPB - keep), self.used_milli
        return {
            resource: (past * keep + used.get(resource, 0) * gain) // PPB
            for resource, past in self.past_ppb.items()
        }

    def change(self, amounts: dict[str, int], sign: int, now_ns: int, half_life_ns: int) -> None:
        """From ``now_ns`` on the queue uses so much more (+1) or less (-1)."""
        if now_ns > self.since_ns:
            self.past_ppb = self.average_ppb(now_ns, half_life_ns)
            self.since_ns = now_ns
        used, past = self.used_milli, self.past_ppb
        for resource, milli in amounts.items():
            used[resource] = used.get(resource, 0) + sign * milli
            if resource not in past:
                past[resource] = 0


class Usage(msgspec.Struct, array_like=True):
    """All queues by name, and for each live attempt's job the queue and what it is charged."""

    queues: dict[str, QueueUse] = {}
    held: dict[str, tuple[str, dict[str, int]]] = {}

    def start(
        self, job: str, queue_name: str, amounts: dict[str, int], now_ns: int, half_life_ns: int
    ) -> None:
        """An attempt of the job holds what its queue is charged from now on."""
        self.held[job] = (queue_name, amounts)
        queue = self.queues.get(queue_name)
        if queue is None:
            queue = self.queues[queue_name] = QueueUse(now_ns)
        queue.change(amounts, +1, now_ns, half_life_ns)

    def end(self, job: str, now_ns: int, half_life_ns: int) -> None:
        """The job holds nothing any more."""
        held = self.held.pop(job, None)
        if held is not None:
            self.queues[held[0]].change(held[1], -1, now_ns, half_life_ns)

    def settle(self, now_ns: int, half_life_ns: int) -> None:
        """Count up to ``now_ns`` by this half-life; another one may hold from then on."""
        for queue in self.queues.values():
            queue.change({}, +1, now_ns, half_life_ns)

"""Policy of a fleet for jobs that hold idle devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MINUTE_NS: Final = 60_000_000_000

Then = Literal["end", "requeue"]


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """When an idle job gets a notice, and whether its devices are released after it.

    ``start_ns`` takes the place of ``after_ns`` for an attempt that has shown no work yet. ``then`` is
    what becomes of a job that was released: it ends, or waits again.
    """

    after_ns: int = 30 * MINUTE_NS
    start_ns: int = 60 * MINUTE_NS
    notice_ns: int = 15 * MINUTE_NS
    release: bool = False
    then: Then = "end"


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """The fleet's terms, and those of queues that have their own. Terms of a queue apply to those below it, too.

    ``busy_ppm`` is how much of one CPU core, or of a GPU's time, counts as work. Jobs of queues in ``exempt`` are
    exempt; in queues of ``idle_ok``, jobs with ``idle_ok``.
    """

    terms: IdleTerms = field(default_factory=IdleTerms)
    busy_ppm: int = 50_000
    exempt: tuple[str, ...] = ()
    idle_ok: tuple[str, ...] = ()
    queues: dict[str, IdleTerms] = field(default_factory=dict)

    def terms_of(self, queue: str, parents: Mapping[str, str | None], *, idle_ok: bool) -> IdleTerms | None:
        """The terms of a job of ``queue`` (``parents``: of each queue); None if it is exempt."""
        line = [queue]
        while (above := parents.get(line[-1])) is not None and above not in line:
            line.append(above)
        spared = {*self.exempt, *(self.idle_ok if idle_ok else ())}
        if spared and not spared.isdisjoint(line):
            return None
        return next((self.queues[name] for name in line if name in self.queues), self.terms)

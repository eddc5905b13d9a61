"""Ranks whose storage does not answer: looks in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.jobs.vitals import GangVitals, RankVitals
from unidle.view.state import View
from unidle.words import plural

STALLED_NS: Final = 10_000_000_000
"""One read or write that takes longer: a slow disk is at other places in between."""


def stalls(view: View, vitals: GangVitals) -> Iterator[ev.Event]:
    """The events that follow from a look: a rank that waits for a disk without a break, and the end of that."""
    job = view.jobs.open.get(vitals.job)
    attempt = job.live if job is not None else None
    if attempt is None or attempt.number != vitals.attempt or attempt.stop is not None:
        return
    stuck = [r for r in vitals.ranks if r.doing == "disk" and vitals.at_ns - r.since_ns >= STALLED_NS]
    standing = next((v for v in attempt.verdicts if _of_a_wait(v.because) and v.over_ns is None), None)
    if stuck and standing is None:
        first = min(stuck, key=lambda rank: rank.since_ns)
        node = attempt.places[first.rank].node
        because = Reason("disk_wait", _text(stuck, node, vitals.at_ns - first.since_ns), {"rank": first.rank})
        yield ev.VerdictReached(
            vitals.job,
            vitals.attempt,
            "storage",
            first.since_ns,
            vitals.at_ns,
            False,
            because,
            first.rank,
            node,
        )
    elif not stuck and standing is not None and standing is attempt.verdict:
        yield ev.VerdictOver(
            vitals.job,
            vitals.attempt,
            Reason("over", f"over: {standing.because.text}", standing.because.figures),
        )


def _of_a_wait(because: Reason) -> bool:
    return because.code == "disk_wait"


def _text(stuck: list[RankVitals], node: str, ns: int) -> str:
    ranks = ", ".join(str(rank.rank) for rank in stuck[:8]) + (" and more" if len(stuck) > 8 else "")
    return (
        f"{plural(len(stuck), 'rank')} {ranks}: storage has not answered for {ns / 1e9:.0f} s (node {node})"
    )

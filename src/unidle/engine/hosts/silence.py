"""What is reported of boxes that do not answer, and that answer again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from unidle.engine.hosts.box_link import BoxLink
from unidle.engine.hosts.gang_state import GangState, RankState
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import Silent


def report_silence(out: Outbox, link: BoxLink, risky: Sequence[tuple[GangState, list[RankState]]]) -> None:
    """Report ranks that may run and do not answer, each once."""
    for gang, ranks in risky:
        if new := [rank.rank for rank in ranks if (gang.key, rank.rank) not in link.silent]:
            link.silent.update((gang.key, rank) for rank in new)
            out.seen.append(Silent(*gang.key, tuple(new), link.heard_ns))


def report_heard(out: Outbox, link: BoxLink, gangs: Collection[GangState]) -> None:
    """The box answers: so do those of its ranks that were silent. ``gangs``: of its job."""
    reported, link.silent = link.silent, set()
    for gang in list(gangs) if reported else ():
        if again := [one.rank for one in gang.on(link.node) if (gang.key, one.rank) in reported]:
            out.seen.append(Silent(*gang.key, tuple(again), 0))


def lost_because(link: BoxLink, now_ns: int) -> str:
    """Why the ranks of a box count as lost."""
    since = datetime.fromtimestamp(link.heard_ns / S, UTC)
    silent_s = (now_ns - link.heard_ns) / S
    return (
        f"node {link.node} has been silent for {silent_s:.1f} s, since {since:%Y-%m-%d %H:%M:%S} UTC: "
        "the lease of its box is over"
    )

"""Detects gangs whose storage does not answer: takes observations of ranks and mounts, and gives verdicts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.jobs.vitals import GangVitals, RankVitals
from unidle.view.jobs import AttemptView
from unidle.view.records import VerdictView
from unidle.view.state import View
from unidle.words import plural

if TYPE_CHECKING:
    from unidle.probe.mount_table import Mount
    from unidle.probe.mount_watch import MountState

STALLED_NS: Final = 10_000_000_000
"""One read or write that takes longer: a slow disk is at other places in between."""
_RANK, _MOUNT = "disk_wait", "mount_wait"


def stalls(view: View, vitals: GangVitals) -> Iterator[ev.Event]:
    """The events that follow from a look: a rank that waits for a disk without a break, and the end of that."""
    job = view.jobs.open.get(vitals.job)
    attempt = job.live if job is not None else None
    if attempt is None or attempt.number != vitals.attempt or attempt.stop is not None:
        return
    stuck = [r for r in vitals.ranks if r.doing == "disk" and vitals.at_ns - r.since_ns >= STALLED_NS]
    if stuck and not _told(attempt):
        first = min(stuck, key=lambda rank: rank.since_ns)
        node = attempt.places[first.rank].node
        text = _text(stuck, node, vitals.at_ns - first.since_ns)
        because = Reason(_RANK, text, {"rank": first.rank})
        yield _reached(vitals.job, attempt, first.since_ns, vitals.at_ns, because, first.rank, node)
    elif not stuck and (standing := _standing(attempt, _RANK)) is not None:
        yield _over(vitals.job, attempt, standing)


def mount_stalls(
    view: View, job: str, asked: Mapping[str, tuple[Mount, MountState]], at_ns: int, on: Sequence[str] = ()
) -> Iterator[ev.Event]:
    """The events that follow from asking the mounts of one job's directories: one that does not answer, and its end.

    ``on``: the nodes where that is so; default: all of the gang.

    A gang with a rank that waits for storage is reported once: the same stall is not reported for its mount as well.
    """
    attempt = view.jobs.open[job].live
    if attempt is None or attempt.stop is not None:
        return
    dead = {
        mount.place: (mount, answer)
        for mount, answer in asked.values()
        if answer.since_ns is not None and at_ns - answer.since_ns >= STALLED_NS
    }
    if dead and not _told(attempt):
        mount, answer = min(dead.values(), key=lambda one: (one[1].since_ns, one[0].place))
        nodes = list(on) or sorted({place.node for place in attempt.places})
        because = Reason(_MOUNT, _mount_text(mount, answer, nodes, at_ns), {"mount": mount.place})
        node = nodes[0] if len(nodes) == 1 else ""  # the server is what all of them have in common
        yield _reached(job, attempt, answer.since_ns or at_ns, at_ns, because, None, node)
    elif not dead and (standing := _standing(attempt, _MOUNT)) is not None:
        place = standing.because.figures.get("mount")
        answers = [answer.since_ns for mount, answer in asked.values() if mount.place == place]
        if not answers or None in answers:  # it is not enough that the next question has only just been asked
            yield _over(job, attempt, standing)


def _told(attempt: AttemptView) -> bool:
    """Whether its storage is known to stall."""
    return any(v.over_ns is None and v.because.code in (_RANK, _MOUNT) for v in attempt.verdicts)


def _standing(attempt: AttemptView, code: str) -> VerdictView | None:
    """The verdict of this code, where it is the last one: no other can be ended."""
    last = attempt.verdict
    return last if last is not None and last.because.code == code else None


def _reached(
    job: str, attempt: AttemptView, onset_ns: int, at_ns: int, because: Reason, rank: int | None, node: str
) -> ev.VerdictReached:
    return ev.VerdictReached(job, attempt.number, "storage", onset_ns, at_ns, False, because, rank, node)


def _over(job: str, attempt: AttemptView, standing: VerdictView) -> ev.VerdictOver:
    because = Reason("over", f"over: {standing.because.text}", standing.because.figures)
    return ev.VerdictOver(job, attempt.number, because)


def _mount_text(mount: Mount, answer: MountState, nodes: list[str], at_ns: int) -> str:
    s = (at_ns - (answer.since_ns or at_ns)) / 1e9
    says = f"answers only: {os.strerror(answer.error)}" if answer.error else "has not answered"
    where = ", ".join(nodes[:8]) + (" and more" if len(nodes) > 8 else "")
    what = f"{mount.place} ({mount.kind}, {mount.source})"
    return f"the storage mounted on {what} {says} for {s:.0f} s ({plural(len(nodes), 'node')} {where})"


def _text(stuck: list[RankVitals], node: str, ns: int) -> str:
    ranks = ", ".join(str(rank.rank) for rank in stuck[:8]) + (" and more" if len(stuck) > 8 else "")
    return (
        f"{plural(len(stuck), 'rank')} {ranks}: storage has not answered for {ns / 1e9:.0f} s (node {node})"
    )

"""Refusals of a queue in words that a person can check against ``unidle queue``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unidle.jobs import Reason
from unidle.place.queue.fair import Refusal
from unidle.place.queue.tree import QueueTree
from unidle.words import counted, device_time

if TYPE_CHECKING:
    from unidle.place.queue.consolidate import Consolidation


def refused(tree: QueueTree, refusal: Refusal) -> Reason:
    """Which bound of which queue is in the way, with its figures in devices or cores."""
    name, resource, used, bound, asked = _figures(tree, refusal)
    text = {
        "limit": f"{name} uses {used} {resource} of at most {bound}, and the job needs {asked}",
        "deserved": f"jobs that are never preempted use {used} of the {bound} {resource} that {name} deserves, "
        f"and this one needs {asked}; with preemption low it could borrow",
        "kept": f"{name} has {bound} {resource} that are not kept for others, {used} of them used, "
        f"and the job needs {asked}",
        "full": f"{name} uses {used} of {bound} {resource}, and the job needs {asked}",
    }[refusal.rule]
    return Reason("quota", text, _plain(tree, refusal))


def behind(tree: QueueTree, refusal: Refusal) -> Reason:
    """A job that would use up the quota of one before it; a shorter one might start."""
    name, resource, used, bound, asked = _figures(tree, refusal)
    text = (
        f"it would still run when a job before it is planned to start, and {name} has no quota for both: "
        f"{used} of {bound} {resource} are in use or planned, and this one needs {asked}"
    )
    return Reason("behind", text, _plain(tree, refusal))


def why_moved(move: Consolidation, nodes: Sequence[str], lost_us: int, whose: str) -> Reason:
    """To the job that is moved: for whom (``whose``: that job in words), what it loses, and where its devices are kept."""
    size = sum(move.hold.devices.values())
    named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    text = f"moved to make room for {whose} ({counted(size, 'device')}), which loses {device_time(lost_us)}; its place on {named} is kept"
    return Reason("moved", text, {"for": move.job, "lost_us": lost_us, "nodes": len(nodes)})


def _figures(tree: QueueTree, refusal: Refusal) -> tuple[str, str, str, str, str]:
    used, bound, asked = (f"{x / 1000:g}" for x in (refusal.used, refusal.bound, refusal.asked))
    return tree.name(refusal.queue) or "the fleet", tree.resources[refusal.resource], used, bound, asked


def _plain(tree: QueueTree, refusal: Refusal) -> dict[str, int | float | str]:
    return {
        "queue": tree.name(refusal.queue) or "the fleet", "resource": tree.resources[refusal.resource],
        "used": refusal.used, "bound": refusal.bound, "asked": refusal.asked,
    }  # fmt: skip

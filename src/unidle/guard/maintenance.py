"""What operators ask of a node, and work on it that is planned. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from unidle.fleet.policies import GuardPolicy
from unidle.guard.remedy_model import CHECK, DRAINED, Set
from unidle.jobs import JobSpec, Reason
from unidle.view.node_health import CareView, Window

DRAIN_NS: Final = 3_600_000_000_000


def drain(target: str, here: CareView | None, deadline_ns: int, by: str) -> Set | Reason:
    """Take it out until a human returns it; a reason where that cannot be."""
    if here is not None and here.state == "out":
        return Reason("refused", f"{target} is already out of use: {here.because.text}")
    if here is not None and here.state in ("remedy", "proving"):
        return Reason("refused", f"{target} is being repaired or checked; try again when that has ended")
    return Set(target, "draining", Reason(DRAINED, f"drained by {by}"), DRAINED, 0, deadline_ns)


def give_back(
    target: str, here: CareView | None, policy: GuardPolicy, now_ns: int, by: str, *, unproved: bool
) -> Set | Reason:
    """Bring it back: proved first, but where nothing was done to it yet or ``unproved`` is asked for."""
    because = Reason("returned", f"returned by {by}")
    if here is None:
        return Reason("refused", f"{target} is already in use")
    if here.state == "remedy":
        return Reason(
            "refused", f"a remedy of {target} is running: {here.because.text}; try again when it has ended"
        )
    if unproved or here.state in ("suspect", "draining"):
        return Set(target, "healthy", because)
    return Set(target, "quarantine", because, CHECK, 1, now_ns + policy.quarantine_ns)


def expected_ns(spec: JobSpec, predicted_ns: int | None) -> int | None:
    """The expected time of an attempt: the job's estimate, else the prediction, else its time limit; None: unknown."""
    if spec.estimate_s is not None:
        return int(spec.estimate_s * 1e9)
    if predicted_ns is not None:
        return predicted_ns
    return None if spec.timeout_s is None else int(spec.timeout_s * 1e9)


def runs_into(
    nodes: Iterable[str], windows: Mapping[str, Window], expected: int | None, now_ns: int
) -> list[str]:
    """Nodes on which a job that starts now would still run when they have to be empty."""
    if expected is None:
        return []
    return [
        node
        for node in dict.fromkeys(nodes)
        if (window := windows.get(node)) is not None
        and window.until_ns > now_ns
        and now_ns + expected > window.drain_by_ns
    ]

"""Which restart policy of a job speaks of what happened, and what follows from it. Pure."""

from __future__ import annotations

from typing import Final

from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason, Restart, RestartEvent, RestartPolicy, role_of
from unidle.view.jobs import JobView
from unidle.words import counted

_S: Final = 1_000_000_000
_MAX_BACKOFF_S: Final = 300.0


def policy_for(
    spec: JobSpec, event: RestartEvent, rank: int | None = None
) -> tuple[int, RestartPolicy] | None:
    """The first policy for the event (of ``rank``, where it is of one), and its place in the list."""
    role = "" if rank is None or not spec.restart.policies else role_of(spec.roles, rank)
    for k, policy in enumerate(spec.restart.policies):
        if policy.event == event and policy.role in ("", role):
            return k, policy
    return None


def is_ignored(spec: JobSpec, event: RestartEvent) -> bool:
    """Whether nothing follows from the event, because a policy says so."""
    found = policy_for(spec, event)
    return found is not None and found[1].action == "ignore"


def acts_on_hang(spec: JobSpec, rank: int | None) -> bool:
    """Whether a gang that does not end by itself, but hangs or is cut off, is stopped; ``rank`` is to blame."""
    found = policy_for(spec, "hang", rank)
    if found is not None:
        return found[1].action != "ignore"
    return spec.restart.max > 0 and any(item in ("any", "hang") for item in spec.restart.on)


def backoff_s(restart: Restart, attempt: int, first_s: float | None = None) -> float:
    """Seconds to wait before restart number ``attempt`` (from 1): doubling, at most 300 s."""
    first_s = restart.backoff_s if first_s is None else first_s
    return min(first_s * 2.0 ** min(attempt - 1, 60), max(_MAX_BACKOFF_S, first_s))


def by_policy(
    job: JobView, event: RestartEvent, why: Reason, now_ns: int, rank: int | None = None
) -> ev.Event | None:
    """What follows from the event, by the first policy that speaks of it; None where none does."""
    found = policy_for(job.spec, event, rank)
    if found is None or found[1].action == "ignore":
        return None
    index, policy = found
    name = f"policy {event}: {policy.action}" + (f" of role {policy.role}" if policy.role else "")
    if policy.action == "abort":
        return ev.JobEnded(job.id, "failed", Reason(why.code, f"{why.text}; {name}", why.figures))
    most, used = _most(job.spec, policy), job.policy_uses.get(index, 0)
    if most is not None and used >= most:
        text = f"{why.text}; {name} has been used {counted(used, 'time')}, as often as it may"
        return ev.JobEnded(job.id, "failed", Reason(why.code, text, why.figures))
    count = f"{used + 1}" if most is None else f"{used + 1} of {most}"
    if policy.action == "requeue" or event == "pending":
        return ev.Requeued(job.id, Reason("requeue", f"{name} {count}: {why.text}", why.figures), index)
    wait_s = backoff_s(job.spec.restart, used + 1, policy.backoff_s)
    text = f"{name} {count} in {wait_s:g} s: {why.text}"
    return ev.RetryPlanned(job.id, now_ns + int(wait_s * _S), Reason("retry", text, why.figures), index)


def _most(spec: JobSpec, policy: RestartPolicy) -> int | None:
    """How often a policy may act; None: without end."""
    if policy.max is not None:
        return policy.max
    return None if policy.event == "evict" else spec.restart.max

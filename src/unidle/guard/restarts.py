"""Which restart policy of a job speaks of what happened, and what follows from it. Pure."""

from __future__ import annotations

import re
from typing import Final

from unidle.events import types as ev
from unidle.guard.failure import error_of, kind_of
from unidle.jobs import JobSpec, Reason, Restart, RestartEvent, RestartPolicy, role_of
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
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
    """Whether a policy of the job ignores the event."""
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
        text = f"{why.text}; {name} was used {counted(used, 'time')}, which is its limit"
        return ev.JobEnded(job.id, "failed", Reason(why.code, text, why.figures))
    count = f"{used + 1}" if most is None else f"{used + 1} of {most}"
    if policy.action == "requeue" or event == "pending":
        return ev.Requeued(job.id, Reason("requeue", f"{name} {count}: {why.text}", why.figures), index)
    wait_s = backoff_s(job.spec.restart, used + 1, policy.backoff_s)
    text = f"{name} {count} in {wait_s:g} s: {why.text}"
    return ev.RetryPlanned(job.id, now_ns + int(wait_s * _S), Reason("retry", text, why.figures), index)


def _reached(attempt: AttemptView, rank: int) -> int | None:
    """The last step of that rank: others may get further before they are stopped. Of the gang where it shows none."""
    own = attempt.ranks[rank].step_n if rank < len(attempt.ranks) else None
    return own[-1] if own else attempt.last_step()


SAME_ERROR: Final = "same error twice, at no step"  # at no step that the attempts before had not reached


def why_in_vain(job: JobView, attempt: AttemptView, culprit: int) -> str:
    """Why another try would fail in the same way, where that is known; empty where it may help.

    Faults of the machine and the network are never called so: the next attempt may run elsewhere.
    """
    rank = attempt.ranks[culprit]
    error = _error(rank, job)
    if error is None or kind_of(attempt, rank) in ("machine", "network"):
        return ""
    step, before = _reached(attempt, culprit), [a for a in job.attempts if a.number < attempt.number]
    reached = max([n for a in before if (n := _reached(a, culprit)) is not None], default=None)
    if step is not None and (reached is None or step > reached):
        return ""  # it got further than before: a next one may, too
    if rank.info.get("oom"):
        return _vain_memory(rank.info.get("oom_limit_of"))
    if rank.last is not None and reached is None and rank.last.sort in _UNMENDED:
        return f"{_UNMENDED[rank.last.sort]} does not fix itself"
    failed = next((a for a in reversed(before) if a.outcome == "failed"), None)
    other = failed.culprit if failed is not None else None
    if failed is None or other is None:
        return ""
    return SAME_ERROR if _error(failed.ranks[other], job) == error else ""


_UNMENDED: Final = {
    "import": "a failed import",
    "syntax": "a syntax error",
    "command": "a missing program or file",
}
_CHANGING: Final = re.compile(
    r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?:tmp|tmp\.|pymp-)[A-Za-z0-9_]{8,10}\b"  # directories of tempfile, mktemp and multiprocessing
    r"|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{8,}\b"  # digests
    r"|\d+"
)


_GENERAL: Final = (1, 2)  # codes for any error; others may ask for a restart


def _error(rank: RankView, job: JobView) -> tuple[str, str] | None:
    """The error and its place, without what differs each time: addresses, process ids, times, names of temporary files.

    Of a program that ended with a code for any error its last word counts, too.
    """
    what, where = error_of(rank, job.spec)
    if not what and rank.code in _GENERAL and rank.last is not None and not rank.lost:
        what = rank.last.what
    return (_CHANGING.sub("#", what), where) if what else None


def _vain_memory(limit_of: object) -> str:
    """Out of memory: the limit of the job is the same each time, the rest of the machine's memory is not."""
    return "out of memory at the same limit" if limit_of == "rank" else ""


def _most(spec: JobSpec, policy: RestartPolicy) -> int | None:
    """How often a policy may act; None: without end."""
    if policy.max is not None:
        return policy.max
    return None if policy.event == "evict" else spec.restart.max

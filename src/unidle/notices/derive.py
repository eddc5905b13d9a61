"""From events to notices. Pure: the same events give the same notices with the same ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from unidle.events import types as ev
from unidle.fleet.policies import STEP_OF
from unidle.notices.model import Notice, SentKind, Severity, iso, notice_id

_SOUND: Final = "healthy"
_NEXT: Final[dict[str, str]] = {
    "check": "it is checked next",
    "reset_gpu": "its GPU is reset next",
    "reboot": "it is rebooted next",
    "replace": "it is replaced next",
    "drain": "it stays out of use until a person returns it",
    "maintenance": "it is worked on next",
}
"""By the step that a drained node or device begins with (``unidle.guard.remedy``)."""


class DerivationState(msgspec.Struct):
    """What has to be remembered of earlier events: jobs that are about to restart, and sick nodes."""

    failed: dict[str, int] = {}  # job -> the attempt that failed, until the next one or the job's end
    restarting: set[str] = set()
    health: dict[str, str] = {}  # node or device -> its health, while it is not healthy
    faults: dict[str, tuple[str, str]] = {}  # node -> its last fault that takes it out, and what is done
    care: dict[str, str] = {}  # node or device -> its last state as a sick one
    source: str = ""  # which log


class _Said(msgspec.Struct, frozen=True):
    kind: SentKind
    state: str
    severity: Severity
    subject: str
    text: str
    job: str | None = None
    attempt: int | None = None
    rank: int | None = None
    node: str | None = None


def derive(known: DerivationState, event: ev.Event, seq: int, time_ns: int) -> Notice | None:
    """The notice of an event; None if the event needs no notice."""
    handler = _HANDLERS.get(type(event))
    said = handler(known, event) if handler is not None else None
    if said is None:
        return None
    return Notice(
        id=notice_id(known.source, seq, said.kind, said.state, said.subject), seq=seq, time_ns=time_ns,
        time=iso(time_ns), kind=said.kind, state=said.state, severity=said.severity, subject=said.subject,
        text=said.text, job=said.job, attempt=said.attempt, rank=said.rank, node=said.node,
    )  # fmt: skip


def _job_ended(known: DerivationState, event: ev.JobEnded) -> _Said | None:
    attempt = known.failed.pop(event.job, None)
    known.restarting.discard(event.job)
    if event.state != "failed":
        return None
    text = f"{event.job} failed: {event.because.text}"
    return _Said("job_failed", "failed", "critical", _job(event.job), text, event.job, attempt)


def _attempt_ended(known: DerivationState, event: ev.AttemptEnded) -> None:
    if event.outcome == "failed":
        known.failed[event.job] = event.attempt


def _retry_planned(known: DerivationState, event: ev.RetryPlanned) -> _Said:
    known.restarting.add(event.job)
    rank = event.because.figures.get("rank")
    return _Said(
        "incident", "restarting", "warning", _job(event.job), f"{event.job}: {event.because.text}", event.job,
        known.failed.get(event.job), rank if isinstance(rank, int) else None,
    )  # fmt: skip


def _attempt_placed(known: DerivationState, event: ev.AttemptPlaced) -> _Said | None:
    known.failed.pop(event.job, None)
    if event.job not in known.restarting:
        return None
    known.restarting.discard(event.job)
    text = f"{event.job} started again as attempt {event.attempt}: {event.because.text}"
    return _Said("incident", "restarted", "info", _job(event.job), text, event.job, event.attempt)


def _verdict_reached(known: DerivationState, event: ev.VerdictReached) -> _Said:
    follows = "it is restarted" if event.acts else "nothing is done by itself"
    text, done = known.faults.get(event.node, ("", ""))
    if done and text == event.because.text:
        follows = f"{done}; the job is stopped, and placed again elsewhere"
    return _Said(
        "verdict", event.kind, "warning" if event.acts or event.kind == "slow" else "critical", _job(event.job),
        f"{event.job}: {event.because.text}; {follows}", event.job, event.attempt, event.rank, event.node or None,
    )  # fmt: skip


def _fault_seen(known: DerivationState, event: ev.FaultSeen) -> None:
    """What is done about it, for the notices of the jobs that it hit."""
    known.faults.pop(event.node, None)
    step = STEP_OF.get(event.action)
    if step is not None:
        target = event.device if event.device and event.action in ("reset_gpu", "drain") else event.node
        known.faults[event.node] = event.because.text, f"{target} is drained; {_NEXT[step]}"


def _remedy_set(known: DerivationState, event: ev.RemedySet) -> _Said | None:
    """A node that is drained, or stays in use in spite of a fault. The states after that change its health."""
    before = known.care.pop(event.target, _SOUND)
    if event.state != _SOUND:
        known.care[event.target] = event.state
    if event.state not in ("draining", "suspect") or event.state == before:
        return None
    node, _, device = event.target.partition("/")
    known.faults.pop(node, None)
    subject = f"device:{event.target}" if device else f"node:{node}"
    if event.state == "suspect":
        text = f"{event.target} stays in use: {event.because.text}"
        return _Said("node", "suspect", "warning", subject, text, node=node)
    how = f"is {event.because.text}" if event.by else f"is drained: {event.because.text}"
    text = f"{event.target} {how}; {_NEXT[event.step]}"
    kind: SentKind = "maintenance" if event.step == "maintenance" else "node"
    return _Said(
        kind, "draining", "info" if event.by or kind != "node" else "warning", subject, text, node=node
    )


def _verdict_over(_known: DerivationState, event: ev.VerdictOver) -> _Said:
    text = f"{event.job}: {event.because.text}"
    return _Said("verdict", "over", "info", _job(event.job), text, event.job, event.attempt)


def _idle_told(_known: DerivationState, event: ev.IdleTold) -> _Said:
    text = f"{event.job}: {event.because.text}"
    return _Said("idle", "idle", "warning", _job(event.job), text, event.job, event.attempt)


def _idle_over(_known: DerivationState, event: ev.IdleOver) -> _Said:
    text = f"{event.job}: {event.because.text}"
    return _Said("idle", "over", "info", _job(event.job), text, event.job, event.attempt)


def _stop_asked(_known: DerivationState, event: ev.StopAsked) -> _Said | None:
    if event.why != "idle":
        return None
    text = f"{event.job} is released: {event.because.text}"
    return _Said("idle", "released", "warning", _job(event.job), text, event.job, event.attempt)


def _health_set(known: DerivationState, event: ev.HealthSet) -> _Said | None:
    before = known.health.pop(event.target, _SOUND)
    if event.health != _SOUND:
        known.health[event.target] = event.health
    if event.health == before:
        return None
    planned = "maintenance" in (event.health, before) and {event.health, before} <= {
        "maintenance",
        "boot",
        _SOUND,
    }
    severity: Severity = "critical" if event.health in ("fault", "quarantine") else "info"
    node, _, device = event.target.partition("/")
    text = f"{event.target} is {event.health} (was {before}): {event.because.text}"
    subject = f"device:{event.target}" if device else f"node:{node}"
    return _Said("maintenance" if planned else "node", event.health, severity, subject, text, node=node)


def _job(job: str) -> str:
    return f"job:{job}"


_HANDLERS: Final[dict[type, Callable[[DerivationState, Any], _Said | None]]] = {
    ev.JobEnded: _job_ended,
    ev.AttemptEnded: _attempt_ended,
    ev.RetryPlanned: _retry_planned,
    ev.AttemptPlaced: _attempt_placed,
    ev.VerdictReached: _verdict_reached,
    ev.VerdictOver: _verdict_over,
    ev.FaultSeen: _fault_seen,
    ev.RemedySet: _remedy_set,
    ev.IdleTold: _idle_told,
    ev.IdleOver: _idle_over,
    ev.StopAsked: _stop_asked,
    ev.HealthSet: _health_set,
}
TYPES: Final = frozenset(_HANDLERS)
KINDS: Final = frozenset(ev.KIND_OF[one] for one in TYPES)
"""Kinds of event in the log that may lead to a notice."""

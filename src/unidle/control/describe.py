"""The view in plain values, as the command line prints them and scripts read them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from unidle.control.ask import Answer, next_decision
from unidle.control.inbox import NOT_TAKEN_UP
from unidle.guard.lifecycle import how_ended
from unidle.jobs import NEVER, NEVER_BY_QUEUE, JobSpec, Reason
from unidle.predict.outcome import Checked, checked
from unidle.view.accounts import durable_points
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.view.state import View
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.place.constraint import Barrier

Plain = dict[str, Any]


def job_line(job: JobView) -> Plain:
    """One job in one line (``unidle list``)."""
    return {
        "job": job.id,
        "name": job.spec.name,
        "state": job.state,
        "attempts": len(job.attempts),
        "ranks": job.spec.ranks,
        "devices": job.spec.devices,
        "steps": job.steps(),
        "user": job.spec.user,
        "queue": job.spec.queue,
        "priority": job.spec.priority,
        "submitted_ns": job.submitted_ns,
        "started_ns": job.attempts[0].placed_ns if job.attempts else None,
        "ended_ns": job.ended_ns,
        "reason": (because := reason_now(job)) and because.text,
        "idle_since_ns": job.live.notice.since_ns if job.live and job.live.notice else None,
    }


def reason_now(job: JobView) -> Reason | None:
    """Why the job is in the state in which it is."""
    if job.terminal:
        return job.because
    live = job.live
    if live is not None:
        if live.stop is not None:
            return live.stop.because
        return live.notice.because if live.notice is not None else live.because
    return job.verdict or (job.retry if job.state == "restarting" or job.attempts else None)


def exit_codes(attempt: AttemptView) -> list[int | None]:
    """Per rank: 0 to 255, minus a signal, or None where the end was not seen."""
    return [rank.code for rank in attempt.ranks]


def job_detail(job: JobView) -> Plain:
    """Everything about one job (``unidle show``)."""
    durable = durable_points(job)
    attempts = [_attempt(a, point.step) for a, point in zip(job.attempts, durable, strict=True)]
    spec = {name: getattr(job.spec, name) for name in _SPEC_FIELDS}
    return {**job_line(job), "command": list(job.spec.command), "spec": spec, "runs": attempts}


_SPEC_FIELDS = (
    "workdir", "devices_per_rank", "device", "checkpoint_path", "progress_pattern", "timeout_s",
    "queue_timeout_s", "grace_s", "price_per_device_hour",
)  # fmt: skip


def _attempt(attempt: AttemptView, durable_step: int | None) -> Plain:
    return {
        "attempt": attempt.number,
        "placed_ns": attempt.placed_ns,
        "ended_ns": attempt.ended_ns,
        "outcome": attempt.outcome,
        "placed_because": attempt.because.text,
        "ended_because": attempt.why.text if attempt.why else None,
        "first_step": attempt.first_step(),
        "last_step": attempt.last_step(),
        "durable_step": durable_step,
        "ranks": [
            _rank(k, rank, place.node, place.slices)
            for k, (rank, place) in enumerate(zip(attempt.ranks, attempt.places, strict=True))
        ],
    }


def _rank(number: int, rank: RankView, node: str, slices: tuple[str, ...]) -> Plain:
    return {
        "rank": number,
        "node": node,
        "slices": list(slices),
        "pid": rank.pid,
        "spawn_ns": rank.spawn_ns,
        "end_ns": rank.end_ns,
        "code": rank.code,
        "lost": rank.lost,
        "how": how_ended(rank),
        "last_step": rank.step_n[-1] if rank.step_n else None,
        "info": rank.info,
        "notes": [text for _, text in rank.notes],
    }


def explain(view: View, job: JobView) -> Plain:
    """Why a job is where it is: the reason now, what would help, and each decision on the way."""
    decisions = [
        _decision(job.submitted_ns, "submitted", f"by {job.spec.user or 'unknown'} to queue {job.spec.queue}")
    ]
    for attempt in job.attempts:
        size = f" ({counted(len(attempt.places), 'rank')})" if job.spec.elastic is not None else ""
        decisions.append(
            _decision(
                attempt.placed_ns,
                "placed",
                f"attempt {attempt.number}{size} on {attempt.because.text}",
                attempt.because,
            )
        )
        for notice in attempt.notices:
            decisions.append(_decision(notice.at_ns, "idle notice", notice.because.text, notice.because))
            if notice.over is not None:
                decisions.append(_decision(notice.over_ns, "notice void", notice.over.text, notice.over))
        decisions += [
            _decision(bad.at_ns, "checkpoint", bad.because.text, bad.because) for bad in attempt.bad
        ]
        if attempt.stop is not None:
            decisions.append(
                _decision(attempt.stop_ns, "stop", attempt.stop.because.text, attempt.stop.because)
            )
        if attempt.why is not None:
            decisions.append(
                _decision(attempt.ended_ns, f"attempt {attempt.outcome}", attempt.why.text, attempt.why)
            )
        if attempt.then is not None:
            decisions.append(_decision(attempt.ended_ns, "again", attempt.then.text, attempt.then))
    if job.because is not None:
        decisions.append(_decision(job.ended_ns, job.state, job.because.text, job.because))
    because = reason_now(job)
    result: Plain = {
        **job_line(job),
        "code": because.code if because else None,
        "decisions": decisions,
        "size": job.resized.text if job.resized is not None else None,
        "predictions": [_prediction(check, view.fleet.currency) for check in checked(job, view)],
    }
    if job.state in ("queued", "restarting"):
        result["waiting"] = _waiting(view, job)
    return result


_NEXT: Final = Reason("fits", "there is room for it: it starts with the next decision")


def _waiting(view: View, job: JobView) -> Plain:
    verdict = job.verdict
    answer = Answer(None, NOT_TAKEN_UP) if verdict is NOT_TAKEN_UP else next_decision(view, job)
    now = answer.because if answer.place is None else _NEXT
    foretold = next((p.value_ns for p in reversed(job.predictions) if p.what == "start"), 0)
    still = foretold if foretold >= view.time_ns and now.code not in NEVER else None
    expected_ns = now.figures.get("planned_start_ns", still)
    return {
        "because": (verdict or job.retry or now).text,
        "now": {"code": now.code, "text": now.text, **now.figures},
        "stops": [stop.job for stop in answer.stops],
        "in_the_way": [] if answer.place is not None else in_the_way(view, job.spec, now),
        "ahead": _ahead(view, job),
        "not_before_ns": job.not_before_ns or None,
        "expected_start_ns": expected_ns,
    }


def _ahead(view: View, job: JobView) -> int:
    """How many jobs come before it in its queue. Those that can never start do not count: nobody waits for them."""
    names = [name for line in view.waiting.values() for _, _, name in line]
    line = [other for name in names if (other := view.jobs.open[name]) is job or not _never(other)]
    from unidle.place.registry import DEFAULT

    if not view.fleet.queues or view.policy not in ("", DEFAULT):
        mine = (-job.spec.priority, job.order)
        return sum((-other.spec.priority, other.order) < mine for other in line)
    from unidle.place.queue.backfill import Backfill, in_order
    from unidle.place.queue.model import Demand

    demands = [
        Demand(o.id, o.spec.queue, o.spec.preemption, 0, 0, (), o.waiting_since_ns, priority=o.spec.priority)
        for o in line
        if o.spec.queue == job.spec.queue
    ]
    return [demand.job for demand in in_order(demands, view.time_ns, Backfill())].index(job.id)


def _never(job: JobView) -> bool:
    return job.verdict is not None and job.verdict.code in NEVER


def in_the_way(view: View, spec: JobSpec, now: Reason) -> list[Plain]:
    """Each thing that keeps a gang from starting now, and what would help: its queue's quota first, then the network.

    ``now`` is what the next decision says.
    """
    from unidle.place.scheduler import Refused, Scheduler

    if now.code in NEVER_BY_QUEUE:
        return []
    found = [_quota_line(now)] if now.code in ("quota", "behind") and "bound" in now.figures else []
    answer = Scheduler().try_one(view, spec)
    if isinstance(answer, Refused):
        found += [barrier_line(barrier) for barrier in answer.barriers]
    return found


def _quota_line(now: Reason) -> Plain:
    """The quota that is in the way, in the form of :func:`barrier_line`; amounts in devices or cores."""
    queue, resource = now.figures["queue"], now.figures["resource"]
    bound, used, asked = (float(now.figures[name]) / 1000 for name in ("bound", "used", "asked"))
    helps = f"{used + asked - bound:g} {resource} less in use in {queue}, or so much more allowed"
    return {
        "constraint": f"quota of {queue}", "text": now.text, "domains": 1, "fitting": 0,
        "largest": max(bound - used, 0.0), "needs": asked, "unblock": helps,
    }  # fmt: skip


def barrier_line(barrier: Barrier) -> Plain:
    """One thing in the way."""
    return {
        "constraint": barrier.constraint.text() if barrier.constraint else None, "text": barrier.text(),
        "domains": barrier.domains, "fitting": barrier.fitting, "largest": barrier.largest, "needs": barrier.needs,
        "unblock": barrier.unblock,
    }  # fmt: skip


def _prediction(check: Checked, currency: str) -> Plain:
    said = check.said
    return {
        "what": said.what,
        "said_ns": said.at_ns,
        "value_ns": said.value_ns,
        "low_ns": said.low_ns,
        "high_ns": said.high_ns,
        "level": said.level_ppm / 1e6,
        "by": said.by,
        "actual_ns": check.actual_ns,
        "error_ns": check.error_ns,
        "within": check.within,
        "model": said.model,
        "attempt": said.attempt or None,
        "cost": _cost(check) | {"currency": currency} if said.what == "cost" else None,
    }


def _cost(check: Checked) -> Plain:
    """A cost in units of money."""
    value, low, high = (micro / 1e6 for micro in check.said.bounds)
    actual, error = (micro / 1e6 if micro is not None else None for micro in (check.actual, check.error))
    return {"value": value, "low": low, "high": high, "actual": actual, "error": error}


def _decision(time_ns: int | None, what: str, text: str, because: Reason | None = None) -> Plain:
    figures = because.figures if because is not None else {}
    return {
        "time_ns": time_ns,
        "what": what,
        "text": text,
        "code": because.code if because else None,
        "figures": figures,
    }


def find_job(view: View, name: str) -> JobView | None:
    """A job by id, by unique beginning of its id, or by name (the newest of that name)."""
    if name in view.jobs:
        return view.jobs[name]
    begins = [job_id for job_id in view.jobs if job_id.startswith(name)]
    if len(begins) == 1:
        return view.jobs[begins[0]]
    named = [job for job in view.jobs.values() if job.spec.name == name]
    return named[-1] if named else None

"""The view in plain values, as the command line prints them and scripts read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from unidle.control.nodes.maintenance import is_checked, links_are_checked
from unidle.control.queries.filler_text import filler_text
from unidle.control.queries.mfu import attempt_mfu, job_mfu
from unidle.events.types import StopAsked
from unidle.guard.failure import error_of, failure_of, failure_of_job, how_ended
from unidle.jobs import Reason
from unidle.ledger.attempt import START_MOST_NS
from unidle.view.accounts import durable_points
from unidle.view.host_clocks import clock_errors
from unidle.view.jobs import AttemptView, JobView, in_full
from unidle.view.ranks import RankView
from unidle.view.state import View
from unidle.view.watching import without_agent
from unidle.words import counted, length

if TYPE_CHECKING:
    from unidle.predict.outcome import Checked

Plain = dict[str, Any]
_NAMED: Final = 8  # jobs that are named in one line
_CLOCKS_NAMED: Final = 3
_MOMENT_NS: Final = 1_000_000_000


def job_line(job: JobView, store: str | None = None, view: View | None = None) -> Plain:
    """One job in one line (``unidle list``); ``store`` is what the commands in it have to name. ``view``: for its MFU."""
    failure = failure_of_job(job)
    return {
        "job": job.id,
        "name": job.spec.name,
        "state": job.state,
        "attempts": len(job.attempts),
        "ranks": job.spec.ranks,
        "devices": job.spec.devices,
        "steps": job.steps(),
        "user": job.spec.user,
        "submitted_by": job.submitted_by or None,
        "queue": job.spec.queue,
        "priority": job.spec.priority,
        "class": job.spec.job_class,
        "submitted_ns": job.submitted_ns,
        "started_ns": job.attempts[0].placed_ns if job.attempts else None,
        "ended_ns": job.ended_ns,
        "reason": (because := reason_now(job)) and because.text,
        "failure": None if failure is None else failure.as_json(store),
        "idle_since_ns": job.live.notice.since_ns if job.live and job.live.notice else None,
        "silent_since_ns": silent["since_ns"] if (silent := silence_of(job)) is not None else None,
        "silent_ranks": silent["ranks"] if silent is not None else [],
        "silent_nodes": silent["nodes"] if silent is not None else [],
        "source": job.source or None,
        "identity": job.identity or None,
        "mfu": mfu.value if view is not None and (mfu := job_mfu(view, job)) is not None else None,
    }


def silence_of(job: JobView) -> Plain | None:
    """Which ranks of the job do not answer, on which nodes, and since when; None where all do."""
    live = job.live
    ranks = live.silent if live is not None else []
    if live is None or not ranks:
        return None
    since_ns = min(live.ranks[k].silent_ns or 0 for k in ranks)
    nodes = sorted({live.places[k].node for k in ranks})
    return {"since_ns": since_ns, "ranks": ranks, "nodes": nodes}


def silence_text(line: Plain, now_ns: int) -> str:
    """``silent since 8 s on n2``, of a line of :func:`job_line`; empty where all its ranks answer."""
    if line["silent_since_ns"] is None:
        return ""
    seconds = max(now_ns - line["silent_since_ns"], 0) // _MOMENT_NS
    return f"silent since {seconds} s on {', '.join(line['silent_nodes'][:_NAMED])}"


def clock_text(errors_ns: Mapping[str, int]) -> str:
    """``clock of n2 known within 0.4 ms``, the least known first; empty where all times are of the log's own clock."""
    known = sorted(errors_ns.items(), key=lambda one: (-one[1], one[0]))
    if len(known) < 2:
        return "".join(f"clock of {node} known within {length(error_ns)}" for node, error_ns in known)
    named = [f"{length(error_ns)} ({node})" for node, error_ns in known[:_CLOCKS_NAMED]]
    more = len(known) - _CLOCKS_NAMED
    rest = f", and better on {counted(more, 'more host')}" if more > 0 else ""
    return f"clocks of hosts known within {', '.join(named)}{rest}"


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


def job_detail(view: View, job: JobView, store: str | None = None) -> Plain:
    """Everything about one job (``unidle show``)."""
    durable = durable_points(job)
    attempts = [
        _attempt(job, a, point.step, store)
        | {
            "clock_errors_ns": clock_errors(view, a),
            "mfu": mfu.as_json() if (mfu := attempt_mfu(view, job, a)) is not None else None,
        }
        for a, point in zip(job.attempts, durable, strict=True)
    ]
    spec = {name: getattr(job.spec, name) for name in _SPEC_FIELDS}
    return {**job_line(job, store, view), "command": list(job.spec.command), "spec": spec, "runs": attempts}


_SPEC_FIELDS = (
    "workdir", "devices_per_rank", "device", "checkpoint_path", "progress_pattern", "timeout_s",
    "queue_timeout_s", "grace_s", "price_per_device_hour",
)  # fmt: skip


def _attempt(job: JobView, attempt: AttemptView, durable_step: int | None, store: str | None) -> Plain:
    failure = failure_of(job, attempt)
    return {
        "attempt": attempt.number,
        "placed_ns": attempt.placed_ns,
        "ended_ns": attempt.ended_ns,
        "outcome": attempt.outcome,
        "placed_because": attempt.because.text,
        "ended_because": attempt.why.text if attempt.why else None,
        "failure": None if failure is None else failure.as_json(store),
        "first_step": attempt.first_step(),
        "last_step": attempt.last_step(),
        "durable_step": durable_step,
        **stacks_of(attempt),
        "ranks": [
            _rank(k, rank, place.node, place.slices)
            for k, (rank, place) in enumerate(zip(attempt.ranks, attempt.places, strict=True))
        ],
    }


def stacks_of(attempt: AttemptView | None) -> Plain:
    """Where the ranks stood when the attempt was last found to hang, by rank; both lists are empty where it was not."""
    taken = attempt.stacks if attempt is not None else None
    rows = [
        {
            "rank": rank, "state": stack.state, "at": stack.at or None, "frames": list(stack.frames),
            "why_not": stack.why_not or None,
        }
        for stack in (taken.stacks if taken is not None else ())
        for rank in stack.ranks
    ]  # fmt: skip
    return {
        "stacks": sorted(rows, key=lambda row: row["rank"]),
        "odd_ranks": list(taken.odd) if taken is not None else [],
        "stacks_text": taken.because.text if taken is not None else None,
        "stacks_ns": attempt.stacks_ns if attempt is not None else None,
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
        "error": error_of(rank)[0] or None,
        "last_step": rank.step_n[-1] if rank.step_n else None,
        "info": rank.info,
        "notes": [text for _, text in rank.notes],
    }


def explain(view: View, job: JobView, store: str | None = None) -> Plain:
    """Why a job is where it is: the reason now, what would help, and each decision on the way."""
    from unidle.predict.outcome import checked  # `list` and `show` do without

    decisions = [_decision(job.submitted_ns, "submitted", f"{_by_whom(job)} to queue {job.spec.queue}")]
    for attempt in job.attempts:
        decisions += _decisions_of(view, job, attempt)
    if job.because is not None:
        decisions.append(_decision(job.ended_ns, job.state, job.because.text, job.because))
    decisions += _room_for(view, job)
    decisions.sort(key=lambda decision: decision["time_ns"])  # stable: equal times keep their order
    because = reason_now(job)
    hung = next((a for a in reversed(job.attempts) if a.stacks is not None), None)
    line = job_line(job, store)
    result: Plain = {
        **line,
        **stacks_of(hung),
        "code": because.code if because else None,
        "decisions": decisions,
        "size": job.resized.text if job.resized is not None else None,
        "filler": filler_text(view, job),
        "silent": silence_text(line, view.time_ns) or None,
        "unmeasured": _unmeasured(job, view.time_ns),
        "unwatched": _unwatched(view, job),
        "clock_errors_ns": clock_errors(view, job.attempts[-1]) if job.attempts else {},
        "predictions": [_prediction(check, view.fleet.currency) for check in checked(job, view)],
    }
    if job.state in ("queued", "restarting"):
        from unidle.control.queries.waiting import (
            waiting,  # a placement policy, which `list` and `show` do without
        )

        result["waiting"] = waiting(view, job)
    return result


def _unwatched(view: View, job: JobView) -> str | None:
    """What is not seen of a running job, as no agent runs on its nodes; None where all have one."""
    places = () if job.live is None else job.live.places
    nodes = without_agent(view, dict.fromkeys(place.node for place in places))
    if not nodes:
        return None
    more = f" and {counted(len(nodes) - _NAMED, 'more node')}" if len(nodes) > _NAMED else ""
    lost = "faults of the nodes, hangs, stragglers and idle devices are not found, and ranks there are not profiled"
    return f"no agent runs on {', '.join(nodes[:_NAMED])}{more}: {lost}"


def _decisions_of(view: View, job: JobView, attempt: AttemptView) -> list[Plain]:
    """The decisions about one attempt."""
    decisions = []
    size = f" ({counted(len(attempt.places), 'rank')})" if job.spec.elastic is not None else ""
    text = f"attempt {attempt.number}{size} on {attempt.because.text}"
    decisions.append(_decision(attempt.placed_ns, "placed", text, attempt.because))
    if _waits_for_check(view, job, attempt):
        nodes = list(dict.fromkeys(place.node for place in attempt.places))
        more = f" and {counted(len(nodes) - _NAMED, 'more node')}" if len(nodes) > _NAMED else ""
        what = "its nodes and the links between them" if links_are_checked(view, attempt) else "its nodes"
        text = f"{what}, before its ranks start: {', '.join(nodes[:_NAMED])}{more}"
        decisions.append(_decision(attempt.placed_ns, "checking", text))
    if attempt.checked is not None:
        decisions.append(_decision(attempt.checked_ns, "checked", attempt.checked.text, attempt.checked))
    for notice in attempt.notices:
        decisions.append(_decision(notice.at_ns, "idle notice", notice.because.text, notice.because))
        if notice.over is not None:
            decisions.append(_decision(notice.over_ns, "notice void", notice.over.text, notice.over))
    decisions += _of_hosts(attempt)
    decisions += [_decision(bad.at_ns, "checkpoint", bad.because.text, bad.because) for bad in attempt.bad]
    if attempt.stacks is not None:
        taken = attempt.stacks.because
        decisions.append(_decision(attempt.stacks_ns, "stacks", taken.text, taken))
    if attempt.stop is not None:
        text = _why_stopped(view, attempt.stop)
        decisions.append(_decision(attempt.stop_ns, "stop", text, attempt.stop.because))
    if attempt.why is not None:
        text = "as requested" if _is_of_stop(attempt, attempt.why) else attempt.why.text
        decisions.append(_decision(attempt.ended_ns, f"attempt {attempt.outcome}", text, attempt.why))
    if attempt.then is not None:
        text = "it waits again" if _is_of_stop(attempt, attempt.then) else attempt.then.text
        decisions.append(_decision(attempt.ended_ns, "again", text, attempt.then))
    return decisions


def _waits_for_check(view: View, job: JobView, attempt: AttemptView) -> bool:
    """Whether the nodes of the attempt are being checked, so that none of its ranks has started."""
    if view.modelled or not attempt.live or attempt.stop is not None or attempt.checked_ns is not None:
        return False
    return all(rank.spawn_ns is None for rank in attempt.ranks) and is_checked(view, job, attempt)


def _of_hosts(attempt: AttemptView) -> list[Plain]:
    """What became of the attempt on its hosts: ranks that did not answer or landed elsewhere, and who ended it."""
    found = []
    for number, (rank, place) in enumerate(zip(attempt.ranks, attempt.places, strict=True)):
        spans = [*rank.silences, *([(rank.silent_ns, rank.end_ns)] if rank.silent_ns is not None else [])]
        for since_ns, until_ns in spans:
            what = f"rank {number} on {place.node} did not answer"
            if until_ns is not None:
                what += f" for {max(until_ns - since_ns, 0) / _MOMENT_NS:.1f} s"
            found.append(_decision(since_ns, "silent", what))
    for k, landing in enumerate(attempt.landings):
        later = next((one for one in attempt.landings[k + 1 :] if one.rank == landing.rank), None)
        slices = later.slices if later is not None else attempt.places[landing.rank].slices
        text = f"rank {landing.rank} got {', '.join(slices)} from its host, not {', '.join(landing.slices)}"
        found.append(_decision(landing.at_ns, "landed", text))
    if attempt.disrupted is not None:
        text = f"ended by others: {attempt.disrupted.text}"
        found.append(_decision(attempt.disrupted_ns, "disrupted", text, attempt.disrupted))
    return found


def _why_stopped(view: View, stop: StopAsked) -> str:
    """Why an attempt was stopped, with whose job it made room for, which older logs do not say."""
    text, waiter = stop.because.text, view.jobs.get(stop.for_job or "")
    if waiter is None or in_full(waiter) in text:
        return text
    return f"stopped to make room for {in_full(waiter)}: {text}"


def _is_of_stop(attempt: AttemptView, because: Reason) -> bool:
    """Whether a reason only repeats why the attempt was stopped for another job."""
    stop = attempt.stop
    return stop is not None and stop.for_job is not None and because.text == stop.because.text


def _room_for(view: View, job: JobView) -> list[Plain]:
    """Whose jobs were stopped or moved for this one: a decision for each moment."""
    at: dict[int, list[str]] = {}
    last_ns = 0
    for time_ns, victim in job.made_room:  # those of one decision are logged within moments
        last_ns = time_ns if not at or time_ns > last_ns + _MOMENT_NS else last_ns
        at.setdefault(last_ns, []).append(victim)
    found = []
    for time_ns, victims in at.items():
        named = [in_full(view.jobs[name]) for name in victims[:_NAMED]]
        more = f" and {counted(len(victims) - _NAMED, 'more job')}" if len(victims) > _NAMED else ""
        line = _decision(time_ns, "room for it", f"stopped to make room for it: {', '.join(named)}{more}")
        found.append(line | {"jobs": victims})
    return found


def _by_whom(job: JobView) -> str:
    user = job.spec.user or "unknown"
    whom = f"by {job.submitted_by} for {user}" if job.submitted_by not in ("", user) else f"by {user}"
    return f"{whom} in {job.source} (there {job.identity})" if job.source else whom


def _unmeasured(job: JobView, now_ns: int) -> str | None:
    """What to do where it is unknown whether the job's time was useful, as no step of it was ever seen."""
    live = job.live
    if not job.attempts or any(a.first_step() is not None or a.watched_ns is not None for a in job.attempts):
        return None
    late = live is not None and live.all_spawned and now_ns - live.placed_ns > START_MOST_NS
    if not late and job.state != "succeeded":
        return None
    return f"{how_to_measure(job.id)}; `unidle profile {job.id}` measures a running job"


def how_to_measure(job: str) -> str:
    """The two things that a user can do about a job whose steps were not seen."""
    return (
        f"no steps were seen: set progress.pattern in the job file (`unidle progress {job}` proposes one),"
        " or call unidle.rank.step() in the training loop"
    )


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

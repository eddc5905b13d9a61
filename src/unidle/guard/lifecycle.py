"""What follows from the state of one job: stop, end, retry, give up. Pure."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, Literal

from unidle.events import types as ev
from unidle.fleet import device_of
from unidle.guard.exit_codes import signal_name
from unidle.guard.failure import (
    cannot_start,
    find_culprit,
    how_ended,
    is_symptom,
    kind_of,
    kind_of_hang,
    text_of,
)
from unidle.guard.restarts import backoff_s, by_policy, is_ignored, why_in_vain
from unidle.guard.stacks import odd_in_words
from unidle.jobs import Reason, Restart
from unidle.share.refusal import CUT_REFUSED
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.words import counted

_S: Final = 1_000_000_000
_OVERRULED: Final = ("disrupted", "rank_failed", "hung")
"""Why a gang was stopped, where that others ended it explains the failure that was seen first."""
CAUSE_NS: Final = 3 * _S
"""How long the gang is left alone after a failure that follows from another's: that one may take its time to end."""


def decide(job: JobView, now_ns: int) -> list[ev.Event]:
    """Events that follow from the job's state at ``now_ns``; empty when nothing does."""
    if job.terminal:
        return []
    attempt = job.live
    if attempt is None:
        return _decide_waiting(job, now_ns)
    if attempt.all_ended:
        return _decide_ended(job, attempt, now_ns)
    if attempt.stop is not None:
        return []
    return _decide_running(job, attempt, now_ns)


def next_deadline_ns(job: JobView) -> int | None:
    """When :func:`decide` may answer differently although nothing happened."""
    if job.terminal:
        return None
    times: list[int] = []
    if job.live is None:
        if job.spec.queue_timeout_s is not None and not is_ignored(job.spec, "pending"):
            since_ns = max(job.waiting_since_ns, job.not_before_ns)  # a back-off is not waiting
            times.append(since_ns + int(job.spec.queue_timeout_s * _S))
    elif job.spec.timeout_s is not None and job.live.stop is None and not is_ignored(job.spec, "timeout"):
        over = [k for k, a in enumerate(job.attempts, 1) if a.stop is not None and a.stop.why == "timeout"]
        since = over[-1] if over else 0  # a policy let it run again
        before = sum((a.ended_ns or 0) - a.placed_ns for a in job.attempts[since:-1])
        times.append(job.live.placed_ns + int(job.spec.timeout_s * _S) - before)
    if job.live is not None and (until_ns := waits_for_cause_ns(job, job.live)) is not None:
        times.append(until_ns)
    return min(times, default=None)


def waits_for_cause_ns(job: JobView, attempt: AttemptView) -> int | None:
    """Until when nothing follows from a failure, because it is a symptom and the cause may be seen yet; None where none is."""
    culprit = find_culprit(attempt, job.spec.ignored_ranks) if attempt.stop is None else None
    if culprit is None or not is_symptom(attempt.ranks[culprit]) or attempt.all_ended:
        return None
    return (attempt.ranks[culprit].end_ns or 0) + CAUSE_NS


def _decide_waiting(job: JobView, now_ns: int) -> list[ev.Event]:
    if job.cancel_by is not None:
        return [ev.JobEnded(job.id, "cancelled", _cancelled(job))]
    deadline = next_deadline_ns(job)
    if deadline is not None and now_ns >= deadline:
        text = f"waited longer than queue_timeout_s = {job.spec.queue_timeout_s:g}"
        if job.verdict:
            text += f": {job.verdict.text}"
        why = Reason("queue_timeout", text)
        return [by_policy(job, "pending", why, now_ns) or ev.JobEnded(job.id, "failed", why)]
    return []


def _cancelled(job: JobView) -> Reason:
    return Reason("cancelled", f"cancelled by {job.cancel_by}")


def _decide_running(job: JobView, attempt: AttemptView, now_ns: int) -> list[ev.Event]:
    grace_ns = int(job.spec.grace_s * _S)
    if job.cancel_by is not None:
        return [ev.StopAsked(job.id, attempt.number, "cancelled", grace_ns, _cancelled(job))]
    if attempt.disrupted is not None:
        return [ev.StopAsked(job.id, attempt.number, "disrupted", grace_ns, attempt.disrupted)]
    culprit = find_culprit(attempt, job.spec.ignored_ranks)
    if culprit is not None and now_ns >= (waits_for_cause_ns(job, attempt) or 0):
        because = why_failed(job, attempt, culprit)
        return [ev.StopAsked(job.id, attempt.number, "rank_failed", grace_ns, because, culprit)]
    verdict = attempt.verdict
    if verdict is not None and verdict.acts:
        # what hangs does not hear SIGTERM, and saves nothing any more
        because, culprit = _why_hung(attempt, verdict.because, verdict.rank)
        return [ev.StopAsked(job.id, attempt.number, "hung", 0, because, culprit)]
    deadline = next_deadline_ns(job)
    if deadline is not None and now_ns >= deadline:
        return [ev.StopAsked(job.id, attempt.number, "timeout", grace_ns, _why_timeout(job, attempt, now_ns))]
    return []


def _why_timeout(job: JobView, attempt: AttemptView, now_ns: int) -> Reason:
    """Also that no step came for long, and then which ranks are not where the others wait."""
    text = f"ran longer than timeout_s = {job.spec.timeout_s:g}"
    overdue_ns = attempt.overdue_ns(now_ns)
    if not overdue_ns:
        return Reason("timeout", text)
    because = Reason("timeout", f"{text}, the last {overdue_ns // _S} s of it without a step")
    return _why_hung(attempt, because, None)[0]


def _why_hung(attempt: AttemptView, because: Reason, rank: int | None) -> tuple[Reason, int | None]:
    """The reason and the rank to blame, with what the stacks add: the ranks that are not where the others wait."""
    taken = attempt.stacks
    if taken is None or not taken.odd:
        return because, rank
    text = f"{because.text}; {odd_in_words(taken.stacks, taken.odd)}"
    culprit = taken.odd[0] if rank is None and len(taken.odd) == 1 else rank
    return Reason(because.code, text, because.figures), culprit


def _decide_ended(job: JobView, attempt: AttemptView, now_ns: int) -> list[ev.Event]:
    stop = attempt.stop
    ended = ev.AttemptEnded
    ignored = job.spec.ignored_ranks
    if _finished(attempt, ignored):
        because = _done(attempt)
        if job.spec.service is not None and job.cancel_by is None:
            left = ended(job.id, attempt.number, "succeeded", because)
            return [left, _always_again(job, because, now_ns)]
        return [
            ended(job.id, attempt.number, "succeeded", because),
            ev.JobEnded(job.id, "succeeded", because),
        ]
    if job.cancel_by is not None:
        because = _cancelled(job)
        return [
            ended(job.id, attempt.number, "cancelled", because),
            ev.JobEnded(job.id, "cancelled", because),
        ]
    if (refused := _refused(attempt)) is not None:
        return [
            ended(job.id, attempt.number, "failed", refused),
            _after_refusal(job, attempt, refused, now_ns),
        ]
    if attempt.disrupted is not None and (stop is None or stop.why in _OVERRULED):
        then = by_policy(job, "evict", attempt.disrupted, now_ns)
        left = ended(job.id, attempt.number, "preempted", attempt.disrupted)
        return [left, then or ev.Requeued(job.id, attempt.disrupted)]
    if stop is not None and (followed := _after_stop(job, attempt, stop, now_ns)) is not None:
        return followed
    culprit = find_culprit(attempt, ignored)  # again, because all ends are known now
    if culprit is None:
        culprit = stop.culprit if stop is not None and stop.culprit is not None else 0
    because = why_failed(job, attempt, culprit)
    return [
        ended(job.id, attempt.number, "failed", because),
        _retry_or_fail(job, attempt, culprit, because, now_ns),
    ]


def _after_stop(job: JobView, attempt: AttemptView, stop: ev.StopAsked, now_ns: int) -> list[ev.Event] | None:
    """What follows from why the attempt was stopped; None where its own failure decides."""
    ended = ev.AttemptEnded
    if stop.why in ("service_stopped", "preempted", "moved", "node_sick") or stop.requeue:
        then = by_policy(job, "evict", stop.because, now_ns) if stop.why in ("preempted", "moved") else None
        left = ended(job.id, attempt.number, "preempted", stop.because)
        return [left, then or ev.Requeued(job.id, stop.because)]
    if stop.why == "timeout":
        then = by_policy(job, "timeout", stop.because, now_ns)
        if then is not None:
            return [ended(job.id, attempt.number, "failed", stop.because), then]
    if stop.why in ("timeout", "idle"):
        state: Literal["failed", "cancelled"] = "failed" if stop.why == "timeout" else "cancelled"
        return [ended(job.id, attempt.number, state, stop.because), ev.JobEnded(job.id, state, stop.because)]
    if stop.why == "hung":
        figures = {**stop.because.figures, "kind": kind_of_hang(attempt)}
        because = Reason(stop.because.code, stop.because.text, figures)
        failed = ended(job.id, attempt.number, "failed", because)
        then = by_policy(job, "hang", stop.because, now_ns, stop.culprit)
        return [failed, then or _again_or_fail(job, stop.because, now_ns)]
    return None


def _refused(attempt: AttemptView) -> Reason | None:
    """Why the machine would not make the parts of devices that the attempt was given; None where it did."""
    rank = next((r for r in attempt.ranks if r.lost and r.info.get("refused")), None)
    if rank is None or any(r.spawn_ns is not None for r in attempt.ranks):
        return None
    return Reason(CUT_REFUSED, rank.notes[-1][1] if rank.notes else "the part cannot be made")


def _after_refusal(job: JobView, attempt: AttemptView, why: Reason, now_ns: int) -> ev.Event:
    """Placed elsewhere at once, which uses no restart. Where the same devices were refused before, placement does not
    avoid them: then the back-off and the number of restarts bound how often that is tried."""
    before = [
        _devices(one)
        for one in job.attempts[: attempt.number - 1]
        if one.why is not None and one.why.code == CUT_REFUSED
    ]
    if any(_devices(attempt) <= devices for devices in before):
        return _again_or_fail(job, why, now_ns)
    return ev.Requeued(job.id, why)


def _devices(attempt: AttemptView) -> frozenset[str]:
    return frozenset(device_of(slice_id) for place in attempt.places for slice_id in place.slices)


def _done(attempt: AttemptView) -> Reason:
    ranks = len(attempt.ranks)
    failed = [k for k, rank in enumerate(attempt.ranks) if rank.failed]
    if failed:
        others = (
            f"{ranks - len(failed)} of {ranks} ranks exited 0" if ranks > len(failed) else "nothing else runs"
        )
        ends = ", ".join(f"rank {k} {how_ended(attempt.ranks[k])}" for k in failed)
        return Reason("done", f"{others}; {ends}, which the job's policy ignores")
    return Reason("done", f"all {ranks} ranks exited 0" if ranks > 1 else "exited 0")


def _finished(attempt: AttemptView, ignored: Container[int]) -> bool:
    """All ranks exited 0 (but for those whose failure is ignored), and not because they were asked to stop."""
    if any(rank.failed and k not in ignored for k, rank in enumerate(attempt.ranks)):
        return False
    return attempt.stop_ns is None or all((rank.end_ns or 0) <= attempt.stop_ns for rank in attempt.ranks)


def _retry_or_fail(job: JobView, attempt: AttemptView, culprit: int, why: Reason, now_ns: int) -> ev.Event:
    restart, rank = job.spec.restart, attempt.ranks[culprit]
    if cannot_start(rank):
        return ev.JobEnded(
            job.id, "failed", Reason("cannot_start", f"{why.text}; not retried: it cannot start", why.figures)
        )
    if (then := by_policy(job, "fail", why, now_ns, culprit)) is not None:
        return then
    if job.spec.service is not None:
        return _always_again(job, why, now_ns)
    if not retries(restart, rank):
        on = ", ".join(str(item) for item in restart.on)
        text = f"{why.text}; not retried: restart.on is [{on}]" if restart.max else why.text
        return ev.JobEnded(job.id, "failed", Reason(why.code, text, why.figures))
    if job.retries < restart.max and not restart.insists and (vain := why_in_vain(job, attempt, culprit)):
        return ev.JobEnded(
            job.id, "failed", Reason(why.code, f"{why.text}; {vain}: not retried", why.figures)
        )
    return _again_or_fail(job, why, now_ns)


def _again_or_fail(job: JobView, why: Reason, now_ns: int) -> ev.Event:
    """Another attempt after the back-off, or the job's end when its restarts are used up."""
    restart = job.spec.restart
    if job.spec.service is not None:
        return _always_again(job, why, now_ns)
    if job.retries >= restart.max:
        text = (
            f"{why.text}; {job.retries} of {counted(restart.max, 'restart')} used"
            if restart.max
            else why.text
        )
        return ev.JobEnded(job.id, "failed", Reason(why.code, text, why.figures))
    wait_s = backoff_s(restart, job.retries + 1)
    text = f"restart {job.retries + 1} of {restart.max} in {wait_s:g} s: {why.text}"
    return ev.RetryPlanned(job.id, now_ns + int(wait_s * _S), Reason("retry", text, why.figures))


def _always_again(job: JobView, why: Reason, now_ns: int) -> ev.RetryPlanned:
    """A service is always restarted; the back-off grows only while it does not come to be ready."""
    in_vain = 0
    for attempt in reversed(job.attempts):
        if attempt.begun_ns is not None:
            break
        in_vain += 1
    wait_s = backoff_s(job.spec.restart, max(in_vain, 1))
    text = f"a service is always restarted, in {wait_s:g} s: {why.text}"
    return ev.RetryPlanned(job.id, now_ns + int(wait_s * _S), Reason("retry", text, why.figures))


def retries(restart: Restart, rank: RankView) -> bool:
    """Whether the policy retries the way in which this rank ended."""
    for item in restart.on:
        if item == "any":
            return True
        if rank.lost or rank.code is None:
            if item == "lost":
                return True
            continue
        if item == "signal" and rank.code < 0:
            return True
        if item == "exit" and rank.code > 0:
            return True
        if item == rank.code or (isinstance(item, str) and rank.code < 0 and item == signal_name(-rank.code)):
            return True
    return False


def why_failed(job: JobView, attempt: AttemptView, culprit: int) -> Reason:
    """One sentence on what the culprit did, with a peer that left early where that explains it."""
    rank = attempt.ranks[culprit]
    text = text_of(rank, culprit, job.spec)
    if rank.step_n:
        text += f" after step {rank.step_n[-1]}"
    early = [
        (r.end_ns, k)
        for k, r in enumerate(attempt.ranks)
        if r.code == 0 and r.end_ns is not None and rank.end_ns is not None and r.end_ns <= rank.end_ns
    ]
    own = rank.last is not None and rank.last.sort == "error" and not rank.last.symptom
    if early and not rank.lost and not own:  # with an error of its own, no peer explains it
        first_ns, k = min(early)
        text += f", {((rank.end_ns or 0) - first_ns) / _S:.1f} s after rank {k} had exited 0"
    figures: dict[str, int | float | str] = {"rank": culprit, "kind": kind_of(attempt, rank)}
    if rank.code is not None:
        figures["code"] = rank.code
    return Reason("rank_failed", text, figures)

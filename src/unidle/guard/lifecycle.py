"""What follows from the state of one job: stop, end, retry, give up. Pure."""

from __future__ import annotations

import signal
from collections.abc import Container
from typing import Final, Literal

from unidle.events import types as ev
from unidle.guard.restarts import backoff_s, by_policy, is_ignored
from unidle.jobs import Reason, Restart
from unidle.share.refusal import CUT_REFUSED
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.words import counted

_S: Final = 1_000_000_000
_CANNOT_EXEC: Final = (126, 127)


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
    return min(times, default=None)


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
    culprit = find_culprit(attempt, job.spec.ignored_ranks)
    if culprit is not None:
        because = why_failed(attempt, culprit)
        return [ev.StopAsked(job.id, attempt.number, "rank_failed", grace_ns, because, culprit)]
    verdict = attempt.verdict
    if verdict is not None and verdict.acts:
        # what hangs does not hear SIGTERM, and saves nothing any more
        return [ev.StopAsked(job.id, attempt.number, "hung", 0, verdict.because, verdict.rank)]
    deadline = next_deadline_ns(job)
    if deadline is not None and now_ns >= deadline:
        because = Reason("timeout", f"ran longer than timeout_s = {job.spec.timeout_s:g}")
        return [ev.StopAsked(job.id, attempt.number, "timeout", grace_ns, because)]
    return []


def _decide_ended(job: JobView, attempt: AttemptView, now_ns: int) -> list[ev.Event]:
    stop = attempt.stop
    ended = ev.AttemptEnded
    ignored = job.spec.ignored_ranks
    if _finished(attempt, ignored):
        because = _done(attempt)
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
        return [ended(job.id, attempt.number, "failed", refused), ev.Requeued(job.id, refused)]
    if stop is not None and (
        stop.why in ("service_stopped", "preempted", "moved", "node_sick") or stop.requeue
    ):
        then = by_policy(job, "evict", stop.because, now_ns) if stop.why in ("preempted", "moved") else None
        left = ended(job.id, attempt.number, "preempted", stop.because)
        return [left, then or ev.Requeued(job.id, stop.because)]
    if stop is not None and stop.why == "timeout":
        then = by_policy(job, "timeout", stop.because, now_ns)
        if then is not None:
            return [ended(job.id, attempt.number, "failed", stop.because), then]
    if stop is not None and stop.why in ("timeout", "idle"):
        state: Literal["failed", "cancelled"] = "failed" if stop.why == "timeout" else "cancelled"
        return [ended(job.id, attempt.number, state, stop.because), ev.JobEnded(job.id, state, stop.because)]
    if stop is not None and stop.why == "hung":
        failed = ended(job.id, attempt.number, "failed", stop.because)
        then = by_policy(job, "hang", stop.because, now_ns, stop.culprit)
        return [failed, then or _again_or_fail(job, stop.because, now_ns)]
    culprit = (
        stop.culprit if stop is not None and stop.culprit is not None else find_culprit(attempt, ignored)
    )
    because = stop.because if stop is not None else why_failed(attempt, culprit or 0)
    return [
        ended(job.id, attempt.number, "failed", because),
        _retry_or_fail(job, attempt, culprit or 0, because, now_ns),
    ]


def _refused(attempt: AttemptView) -> Reason | None:
    """Why the machine would not make the parts of devices that the attempt was given; None where it did."""
    rank = next((r for r in attempt.ranks if r.lost and r.info.get("refused")), None)
    if rank is None or any(r.spawn_ns is not None for r in attempt.ranks):
        return None
    return Reason(CUT_REFUSED, rank.notes[-1][1] if rank.notes else "the part cannot be made")


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
    if not retries(restart, rank):
        on = ", ".join(str(item) for item in restart.on)
        text = f"{why.text}; not retried: restart.on is [{on}]" if restart.max else why.text
        return ev.JobEnded(job.id, "failed", Reason(why.code, text, why.figures))
    return _again_or_fail(job, why, now_ns)


def _again_or_fail(job: JobView, why: Reason, now_ns: int) -> ev.Event:
    """Another attempt after the back-off, or the job's end when its restarts are used up."""
    restart = job.spec.restart
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


def cannot_start(rank: RankView) -> bool:
    """The command does not exist or may not be executed: no further try can help."""
    return rank.spawn_ns is None and rank.code in _CANNOT_EXEC


def find_culprit(attempt: AttemptView, ignored: Container[int] = ()) -> int | None:
    """The rank to blame: a lost or killed one before those that exited non-zero, then the earliest.

    When one rank dies its peers soon exit with errors of their connections; these are symptoms.
    Ranks that ended after the order to stop are never blamed, nor ``ignored`` ones.
    """
    failed = [
        (_symptom(rank), rank.end_ns or 0, k)
        for k, rank in enumerate(attempt.ranks)
        if rank.failed
        and k not in ignored
        and (attempt.stop_ns is None or (rank.end_ns or 0) <= attempt.stop_ns)
    ]
    if not failed:
        after = [
            (rank.end_ns or 0, k) for k, rank in enumerate(attempt.ranks) if rank.failed and k not in ignored
        ]
        return min(after)[1] if after and attempt.stop is None else None
    return min(failed)[2]


def _symptom(rank: RankView) -> bool:
    return not rank.lost and rank.code is not None and rank.code > 0 and not cannot_start(rank)


def why_failed(attempt: AttemptView, culprit: int) -> Reason:
    """One sentence on what the culprit did, with a peer that left early where that explains it."""
    rank = attempt.ranks[culprit]
    text = f"rank {culprit} {how_ended(rank)}"
    if rank.step_n:
        text += f" after step {rank.step_n[-1]}"
    early = [
        (r.end_ns, k)
        for k, r in enumerate(attempt.ranks)
        if r.code == 0 and r.end_ns is not None and rank.end_ns is not None and r.end_ns <= rank.end_ns
    ]
    if early and not rank.lost:
        first_ns, k = min(early)
        text += f", {((rank.end_ns or 0) - first_ns) / _S:.1f} s after rank {k} had exited 0"
    figures: dict[str, int | float | str] = {"rank": culprit}
    if rank.code is not None:
        figures["code"] = rank.code
    return Reason("rank_failed", text, figures)


def how_ended(rank: RankView) -> str:
    """In words: ``exited 3``, ``was killed by SIGKILL``, ``ran out of memory``, ``was lost``."""
    if rank.lost:
        return f"was lost ({rank.notes[-1][1]})" if rank.notes else "was lost"
    if rank.code is None:
        return "is alive"
    if rank.info.get("oom"):
        return "ran out of memory"
    if cannot_start(rank):
        return f"cannot start: {rank.notes[-1][1]}" if rank.notes else "cannot start"
    if rank.code < 0:
        return f"was killed by {signal_name(-rank.code)}"
    return f"exited {rank.code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

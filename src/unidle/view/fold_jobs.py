"""Events of jobs, their attempts and ranks, applied to the view. Part of the fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.jobs import JobState, RankPlace, transition
from unidle.jobs.spec import is_job_id
from unidle.view import fold_fleet as of_fleet
from unidle.view import host_clocks
from unidle.view.accounts import expected_postings
from unidle.view.jobs import AttemptView, JobView
from unidle.view.node_health import Strike, struck
from unidle.view.partitions import renamed
from unidle.view.ranks import RankView, take_up
from unidle.view.records import IdleNotice, Prediction, Promise, Removal, UseView, VerdictView
from unidle.view.released import given_back
from unidle.view.speeds import learn
from unidle.view.state import View
from unidle.view.stranded import strand
from unidle.view.usage import charged, milli_of

_NOTICES_KEPT: Final = 31  # of an attempt that gets notices again and again
_VERDICTS_KEPT: Final = 63
ENDED_KEPT: Final = 64
"""Jobs that ended last, by name in the view: a list of them needs no look at all the others."""
_NO_COMMAND: Final = (126, 127)  # exit codes: nothing to do with the fleet


def job_of(view: View, job: str) -> JobView:
    """A job that the log submitted. Errors: :class:`StoreDamaged`."""
    try:
        return view.jobs.open.get(job) or view.jobs[job]
    except KeyError:
        raise StoreDamaged(
            "the log names a job that it never submitted",
            field=f"event {view.seq}", value=job, remedy="run `unidle store check`",
        ) from None  # fmt: skip


def set_state(view: View, job: JobView, state: JobState) -> None:
    """The job changes its state, by the table of legal transitions."""
    after = transition(job.state, state)
    if job.state in ("queued", "restarting"):
        view.queue.remove(job)
    job.state = after
    view.touch(job.id)
    if state in ("queued", "restarting"):
        view.enqueue(job)
    if job.spec.is_filler:
        view.fillers.changed(job)


_FREE_CAUSES: Final = {
    "gathering": "gathering", "reserved": "gathering", "consolidate": "gathering", "order": "gathering",
    "quota": "quota", "behind": "quota", "no_right_to_preempt": "quota", "over_limit": "quota",
    "no_queue": "no_demand", "never_fits": "no_demand", "no_cores": "no_demand",
}  # fmt: skip
_KEPT_BACK: Final = _FREE_CAUSES.keys() | {"planned"}
"""Codes of jobs that wait although devices may be free, by a decision."""
_CAUSE_ORDER: Final = ("fragmented", "gathering", "quota")


def _free_cause(view: View, now: int) -> None:
    """Why free time is free: the first of these that keeps a job waiting, else there is no demand.

    What no state of the fleet could ever serve is no demand for what is free.
    """
    codes, cause = view.queue.codes(), "no_demand"
    if codes:
        causes = {_FREE_CAUSES.get(code, "fragmented") for code in codes}
        cause = next((c for c in _CAUSE_ORDER if c in causes), cause)
    view.book.set_free_cause(cause, now)


# -- jobs --------------------------------------------------------------------------------------------


def job_submitted(view: View, event: ev.JobSubmitted, now: int) -> None:
    if event.job in view.jobs:
        return  # the same request, taken over twice
    if not is_job_id(event.job):
        raise StoreDamaged(
            "the id of a job cannot be a file's name",
            field=f"event {view.seq}", value=event.job, remedy="the log was not written by unidle: use another store",
        )  # fmt: skip
    job = JobView(event.job, event.spec, len(view.jobs), now, waiting_since_ns=now)
    job.submitted_by, job.source, job.identity = event.submitted_by, event.source, event.identity
    view.jobs.add(job)
    if job.spec.is_filler:
        view.fillers.changed(job)
    else:
        view.enqueue(job)
    view.touch(job.id)


def cancel_asked(view: View, event: ev.CancelAsked, _now: int) -> None:
    job = job_of(view, event.job)
    if not job.terminal and job.cancel_by is None:
        job.cancel_by = event.by


def job_judged(view: View, event: ev.JobJudged, now: int) -> None:
    job = job_of(view, event.job)
    view.queue.judge(job, event.because)
    _free_cause(view, now)


def attempt_placed(view: View, event: ev.AttemptPlaced, now: int) -> None:
    job = job_of(view, event.job)
    wanted = max(job.waiting_since_ns, job.not_before_ns)
    if job.spec.is_filler or (job.verdict is not None and job.verdict.code in _KEPT_BACK):
        wanted = now  # what was free meanwhile was so for that reason: the decision was there
    set_state(view, job, "starting")
    places, occupancy = event.places, view.occupancy
    ids = [s for place in places for s in place.slices]
    if not occupancy.knows_all(ids):
        places = renamed(view.fleet, places)
        ids = [s for place in places for s in place.slices]
    ranks = [RankView() for _ in places]
    attempt = AttemptView(event.attempt, now, places, event.because, ranks)
    if view.clocks:
        attempt.clocks = host_clocks.at_start(view, places)
    job.attempts.append(attempt)
    job.verdict = None
    view.promised.pop(job.id, None)
    view.live.add(job.id)
    view.request(job, +1)
    view.count_firm(job, +1)
    _free_cause(view, now)
    numbers = view.book.indexes(ids)
    if view.closed or view.spares or view.taken:
        of_fleet.entered(view, numbers, now)
    view.book.take(numbers, now, wanted, job.id)
    if job.spec.is_filler:  # for all others they stay free
        view.fillers.changed(job)
        strand(view, (place.node for place in places), now, asks=False)
        return
    occupancy.take(ids)
    strand(view, (place.node for place in places), now, asks=job.spec.requests.given)
    started_use(view, job, places)


def started_use(view: View, job: JobView, places: Sequence[RankPlace]) -> None:
    """The job's queue is charged for these places from now on; a filler's is not."""
    if job.spec.is_filler:
        return
    ids = [s for place in places for s in place.slices]
    amounts: dict[str, int] = {}  # ranks without devices count in no quota
    if ids:
        slices = view.book.slices
        milli = sum([milli_of(slices[k].share_ppm) for k in view.book.indexes(ids)])
        amounts = charged(job.spec, view.occupancy.kind_of(ids[0]), milli, view.models)
    view.usage.start(job.id, job.spec.queue, amounts, view.time_ns, view.fleet.history.half_life_ns)


def stop_asked(view: View, event: ev.StopAsked, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if not attempt.live:
        return
    attempt.stop_ns = attempt.stop_ns or now
    attempt.stop = event
    job = view.jobs.open[event.job]
    if event.for_job is not None and job.spec.is_filler and attempt.yielded_ns is None:
        attempt.yielded_ns = now
        view.fillers.changed(job)
        given_back(view, attempt, now, asks=False)
    waiter = view.jobs.open.get(event.for_job or "")
    if waiter is not None:
        waiter.made_room = [*waiter.made_room[-_VERDICTS_KEPT:], (now, event.job)]
    view.touch(event.job)


def verdict_reached(view: View, event: ev.VerdictReached, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if attempt.live:
        about, since = (event.kind, event.rank, event.node), (event.onset_ns, event.signal_ns)
        said = VerdictView(now, *about, *since, event.acts, event.because)
        attempt.verdicts = [*attempt.verdicts[-_VERDICTS_KEPT:], said]
        if event.node and event.kind in ("hang", "cut"):
            struck(view.care, event.node, Strike(now, event.job, event.attempt, event.because))


def preflight_ended(view: View, event: ev.PreflightEnded, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if attempt.live:
        attempt.checked_ns, attempt.checked = now, event.because


def verdict_over(view: View, event: ev.VerdictOver, now: int) -> None:
    verdict = attempt_of(view, job_of(view, event.job), event.attempt).verdict
    if verdict is not None:
        verdict.over_ns = now


def stacks_taken(view: View, event: ev.StacksTaken, now: int) -> None:
    job = view.jobs.open.get(event.job)
    if job is not None:  # the look may end after the job has
        attempt = attempt_of(view, job, event.attempt)
        attempt.stacks, attempt.stacks_ns = event, now


def utilisation_seen(view: View, event: ev.UtilisationSeen, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if not attempt.live:
        return
    since_ns, busy_ns = min(event.since_ns, now), attempt.use.busy_ns
    if event.use == "busy":
        busy_ns = now
    elif attempt.use.use == "busy":
        busy_ns = max(busy_ns, since_ns)
    attempt.use = UseView(event.use, now, since_ns, busy_ns, event.text)


def idle_told(view: View, event: ev.IdleTold, now: int) -> None:
    attempt = attempt_of(view, job_of(view, event.job), event.attempt)
    if attempt.live:
        said = IdleNotice(now, event.since_ns, event.evidence, event.notice_ns, event.because)
        attempt.notices = [*attempt.notices[-_NOTICES_KEPT:], said]


def idle_over(view: View, event: ev.IdleOver, now: int) -> None:
    notice = attempt_of(view, job_of(view, event.job), event.attempt).notice
    if notice is not None:
        notice.over_ns, notice.over = now, event.because


def promised(view: View, event: ev.Promised, _now: int) -> None:
    job = job_of(view, event.job)
    live = job.live
    moves = live is not None and live.stop is not None and live.stop.why == "moved"
    if not job.terminal and (live is None or moves):
        view.promised[job.id] = Promise(event.kind, event.devices, event.expires_ns)


def attempt_ended(view: View, event: ev.AttemptEnded, now: int) -> None:
    job = job_of(view, event.job)
    attempt = attempt_of(view, job, event.attempt)
    view.request(job, -1)
    view.count_firm(job, -1)
    attempt.ended_ns, attempt.outcome, attempt.why = now, event.outcome, event.because
    failed = event.outcome == "failed" and event.because.figures.get("code") not in _NO_COMMAND
    view.failures += failed and job.spec.needs_devices  # for rates per device
    kept = attempt.culprit
    if kept is None:  # of a gang that hung: the one that printed an error before
        spoke = (
            k for k, r in enumerate(attempt.ranks) if r.last and r.last.sort != "line" and not r.last.symptom
        )
        kept = next(spoke, None)
    for k, rank in enumerate(attempt.ranks):
        if rank.last is not None and rank.last.lines and k != kept:
            rank.last = structs.replace(rank.last, lines=())  # of a large gang they would be megabytes
    if view.clocks:
        host_clocks.attempt_ended(view, attempt)
    view.device_ns += (now - attempt.placed_ns) * job.devices_of(attempt)
    view.live.discard(job.id)
    view.usage.end(job.id, now, view.fleet.history.half_life_ns)
    view.touch(job.id)
    if view.cuttable_nodes():
        from unidle.view import colocation  # not needed where nothing is cut

        colocation.left(view, job, attempt)
    if job.spec.is_filler:
        view.fillers.left(job, attempt)
    if attempt.yielded_ns is None:
        given_back(view, attempt, now, asks=job.spec.requests.given)


def retry_planned(view: View, event: ev.RetryPlanned, now: int) -> None:
    job = job_of(view, event.job)
    if event.policy is None:
        job.retries += 1
    else:
        _count_policy(job, event.policy)
    job.retry = job.attempts[-1].then = event.because
    _wait_again(view, job, "restarting", event.not_before_ns, now)


def requeued(view: View, event: ev.Requeued, now: int) -> None:
    job = job_of(view, event.job)
    job.retry = event.because
    if event.policy is not None:
        _count_policy(job, event.policy)
    if job.state in ("queued", "restarting"):
        job.waiting_since_ns = now
        return  # it has waited too long, and waits on
    if job.attempts:
        job.attempts[-1].then = event.because
    _wait_again(view, job, "queued", 0, now)  # no back-off: the decision under way may place it


def _count_policy(job: JobView, policy: int) -> None:
    job.policy_uses = {**job.policy_uses, policy: job.policy_uses.get(policy, 0) + 1}


def resized(view: View, event: ev.Resized, _now: int) -> None:
    job = job_of(view, event.job)
    job.resized = event.because
    view.resize(job, event.ranks)


def _wait_again(view: View, job: JobView, state: JobState, not_before_ns: int, now: int) -> None:
    job.not_before_ns = not_before_ns
    job.waiting_since_ns = now
    job.verdict = None
    set_state(view, job, state)


def job_ended(view: View, event: ev.JobEnded, now: int) -> None:
    job = job_of(view, event.job)
    if event.state == "succeeded" and job.state == "starting":
        set_state(view, job, "running")
    set_state(view, job, event.state)
    job.ended_ns = now
    job.because = event.because
    _free_cause(view, now)
    view.promised.pop(job.id, None)
    if not job.spec.is_filler:
        learn(view.speeds, view.book, job)
    view.jobs.put_away(job)
    view.unposted.append(job.id)
    view.unposted_size += expected_postings(job)
    view.ended.append(job.id)
    del view.ended[:-ENDED_KEPT]
    view.stored[job.id] = now
    if job.spec.keep:
        view.keep.add(job.id)


def jobs_removed(view: View, event: ev.JobsRemoved, now: int) -> None:
    gone = {name for name in event.jobs if job_of(view, name).terminal}  # never one that runs or waits
    removal = Removal(now, event.by, event.why)
    for name in event.jobs:
        if name in gone and name not in view.removed:
            view.removed.add(name, removal)
            view.stored.pop(name, None)
            view.keep.discard(name)
    view.ended = [name for name in view.ended if name not in gone]


def keep_set(view: View, event: ev.KeepSet, _now: int) -> None:
    there = {job_of(view, name).id for name in event.jobs} - view.removed.keys()
    if event.keep:
        view.keep |= there
    else:
        view.keep -= there


def predicted(view: View, event: ev.Predicted, now: int) -> None:
    job = view.jobs.open.get(event.job)
    if job is None:
        job_of(view, event.job)  # known, and over: nothing can be predicted of it
        return
    job.predictions.append(Prediction(**structs.asdict(event), at_ns=now))
    view.touch(job.id)


# -- ranks -------------------------------------------------------------------------------------------


def attempt_of(view: View, job: JobView, number: int) -> AttemptView:
    """An attempt that the log placed. Errors: :class:`StoreDamaged`."""
    if not 1 <= number <= len(job.attempts):
        raise StoreDamaged(
            "the log names an attempt that it never placed",
            field=f"event {view.seq}", value=f"{job.id} attempt {number}", remedy="run `unidle store check`",
        )  # fmt: skip
    return job.attempts[number - 1]


def rank_saw(view: View, event: ev.RankSaw, _now: int) -> None:
    job = view.jobs.open.get(event.job)
    if job is None:
        job_of(view, event.job)  # known, and its books are closed
        return
    attempts, number = job.attempts, event.attempt
    attempt = attempts[number - 1] if 0 < number <= len(attempts) else attempt_of(view, job, number)
    ranks, rank_number = attempt.ranks, event.rank
    if not 0 <= rank_number < len(ranks):
        raise StoreDamaged(
            "the log names a rank that its gang does not have",
            field=f"event {view.seq}", value=f"{event.job} rank {rank_number}", remedy="run `unidle store check`",
        )  # fmt: skip
    rank = ranks[rank_number]
    if view.followed:
        saved, began = rank.saves[-1] if rank.saves else None, (rank.ready_ns, not rank.step_ns)
        take_up(rank, event.first, event.marks)
        if (rank.saves and rank.saves[-1] is not saved) or (rank.ready_ns, not rank.step_ns) != began:
            view.touch(event.job)
    else:
        take_up(rank, event.first, event.marks)
    if job.state == "starting" and attempt is job.attempts[-1] and attempt.live and attempt.all_spawned:
        set_state(view, job, "running")

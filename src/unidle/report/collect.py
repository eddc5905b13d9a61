"""From a store to the report's input: one window, all devices, the jobs and events that touch it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from unidle.control.queries.describe import exit_codes, reason_now
from unidle.control.queries.mfu import mfu_lines
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.guard.failure import how_ended
from unidle.jobs import Reason
from unidle.ledger.taxonomy import GROUP_OF
from unidle.report.job_summary import steps_done_again
from unidle.report.model import (
    AttemptLine,
    CodeLine,
    DeviceTrack,
    EventLine,
    EventMark,
    JobLine,
    JobStory,
    LeafTime,
    RatioLine,
    ReportData,
    TimelineBar,
)
from unidle.report.rank_output import RankOutput, UnknownOutput
from unidle.report.secrets import Mask
from unidle.report.stories import STORIES_SHOWN, story_of
from unidle.store.protocol import Store, StoredEvent
from unidle.view.accounts import durable_points
from unidle.view.jobs import AttemptView, JobView
from unidle.view.source import ledger_source, prices
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.ledger.answers import LedgerSummary
    from unidle.ledger.select import TimeRange
    from unidle.ledger.sources import LedgerSource

EVENTS_SHOWN: Final = 5_000
Where = Mapping[str, Collection[str | int]]
CodesOf = Callable[["LedgerSource", "TimeRange"], tuple[CodeLine, ...]]


def no_codes(_source: LedgerSource, _window: TimeRange) -> tuple[CodeLine, ...]:
    """Where profiles and rules of slow code are not asked."""
    return ()


def collect(
    store: Store, view: View, shown_store: str, *, job: str | None = None, summary: LedgerSummary | None = None,
    where: Where | None = None, output: RankOutput | None = None, codes: CodesOf = no_codes,
) -> ReportData:  # fmt: skip
    """The report of one job's time on all devices, or of the whole store.

    ``summary`` (with its own window and filter ``where``) replaces the one that would be asked for, and leaves out attempts, events
    and stories, which only the page shows. ``output`` has what ranks printed.
    ``codes`` finds what slow code cost.
    """
    from unidle.ledger.query import summary as ask

    source = ledger_source(store, view)
    details = summary is None
    if summary is None:
        summary = ask(source, _window(source.extent(), view, job), prices=prices(view))
    window = summary.window
    jobs = [j for j in view.jobs.values() if _touches(j, window)]
    masks = {j.id: Mask(j.spec.env, j.spec.command) for j in jobs}
    told = [j for j in jobs if job in (None, j.id)][-STORIES_SHOWN:] if details else []
    return ReportData(
        title=_title(view, job),
        generated_ns=time.time_ns(),
        store=shown_store,
        window_start_ns=window.start_ns,
        window_end_ns=window.end_ns,
        capacity_ns=summary.capacity_ns,
        leaves=_leaves(summary),
        ratios=_ratios(summary),
        currency=view.fleet.currency,
        devices=_tracks(source, window, where),
        jobs=tuple(_job(j, masks[j.id]) for j in jobs),
        attempts=tuple(line for j in jobs for line in _attempts(j, masks[j.id])) if details else (),
        events=tuple(_events(store, view, window, job, masks)) if details else (),
        stories=_stories(view, told, output or UnknownOutput(), shown_store),
        codes=codes(source, window),
        time_unit="GPU" if all(d.kind == "gpu" for d in view.fleet.devices()) else "device",
    )


def _stories(view: View, jobs: list[JobView], output: RankOutput, store: str) -> tuple[JobStory, ...]:
    """The latest first."""
    return tuple(story_of(job, output, view.time_ns, store, mfu_lines(view, job)) for job in reversed(jobs))


def _window(whole: TimeRange, view: View, job: str | None) -> TimeRange:
    """That of one job, or of the whole store."""
    from unidle.ledger.select import TimeRange

    if job is None:
        return whole
    one = view.jobs[job]
    end_ns = view.time_ns if one.ended_ns is None else one.ended_ns
    return TimeRange(max(one.submitted_ns, whole.start_ns), min(end_ns, whole.end_ns))


def _title(view: View, job: str | None) -> str:
    return "all jobs" if job is None else f"{job}: {view.jobs[job].state}"


def _touches(job: JobView, window: TimeRange) -> bool:
    return job.submitted_ns <= window.end_ns and (job.ended_ns is None or job.ended_ns >= window.start_ns)


def _leaves(summary: LedgerSummary) -> tuple[LeafTime, ...]:
    totals: dict[str, int] = {}
    for item in summary.leaves:
        totals[item.leaf] = totals.get(item.leaf, 0) + item.ns
    lines = []
    for item in summary.leaves:
        cost = None
        if summary.cost is not None and totals[item.leaf]:
            micro = summary.cost.leaves_micro.get(item.leaf, 0)
            cost = micro * item.ns / totals[item.leaf] / 1_000_000
        lines.append(LeafTime(item.leaf, item.group, item.ns, item.how, cost))
    return tuple(lines)


def _ratios(summary: LedgerSummary) -> tuple[RatioLine, ...]:
    from unidle.ledger.ratios import RATIOS

    told = {name: definition.text for name, definition in RATIOS.items()}
    return tuple(
        RatioLine(name, ratio.value, ratio.numerator_ns, ratio.denominator_ns, told.get(name, ""))
        for name, ratio in summary.ratios.items()
    )


def _tracks(source: LedgerSource, window: TimeRange, where: Where | None) -> tuple[DeviceTrack, ...]:
    from unidle.ledger.columns import rows
    from unidle.ledger.export import standing_rows

    bars: dict[str, list[TimelineBar]] = {}
    about: dict[str, tuple[str, str, str, int]] = {}
    for part in standing_rows(source, window, where):
        for info in part.slices.infos():
            about[info.id] = (info.device, info.node, info.model, info.share_ppm)
        for row in rows(part):
            bars.setdefault(row.slice, []).append(
                TimelineBar(row.start_ns, row.end_ns, row.leaf, GROUP_OF[row.leaf], row.job or "", row.attempt or 0,
                    -1 if row.step is None else row.step, row.how, row.observer)
            )  # fmt: skip
    return tuple(
        DeviceTrack(device, node, model, tuple(bars.get(name, ())), "" if name == device else name, share)
        for name, (device, node, model, share) in about.items()
        if name in bars
    )


def _job(job: JobView, mask: Mask) -> JobLine:
    because = reason_now(job)
    lost = steps_done_again(job)
    return JobLine(
        job.id, job.spec.name, job.state, job.spec.user, job.spec.queue, job.spec.ranks, len(job.attempts),
        job.steps() or None, lost, job.submitted_ns, job.attempts[0].placed_ns if job.attempts else None,
        job.ended_ns, mask.text(because.text) if because else "",
    )  # fmt: skip


def _attempts(job: JobView, mask: Mask) -> Iterator[AttemptLine]:
    for attempt, durable in zip(job.attempts, durable_points(job), strict=True):
        yield _attempt(job, attempt, durable.step, mask)


def _attempt(job: JobView, attempt: AttemptView, durable_step: int | None, mask: Mask) -> AttemptLine:
    return AttemptLine(
        job.id, attempt.number, attempt.placed_ns, attempt.ended_ns,
        tuple(s for place in attempt.places for s in place.slices),
        attempt.outcome or "running", mask.text((attempt.why or attempt.because).text),
        tuple(exit_codes(attempt)), attempt.first_step(), attempt.last_step(), durable_step,
    )  # fmt: skip


# -- events ------------------------------------------------------------------------------------------

_TOLD_MARKS = (b'"saved"', b'"exit"', b'"lost"', b'"note"', b'"spawn"')
_SILENT = frozenset({"sighted", "fleet_seen", "fleet_changed", "fleet_declared"})


def _events(
    store: Store, view: View, window: TimeRange, job: str | None, masks: Mapping[str, Mask]
) -> Iterator[EventLine]:
    lines: list[EventLine] = []
    for stored in store.read(after=_events_before(store, window.start_ns)):
        if stored.time_ns > window.end_ns:
            break
        if stored.kind in _SILENT:
            continue
        if stored.kind == "rank_saw" and not any(mark in stored.body for mark in _TOLD_MARKS):
            continue
        if job is not None and job.encode() not in stored.body and stored.kind != "health_set":
            continue
        lines.extend(event_lines(view, stored))
        if len(lines) > 2 * EVENTS_SHOWN:
            del lines[:-EVENTS_SHOWN]
    lines.sort(key=lambda line: line.time_ns)
    for line in lines[-EVENTS_SHOWN:]:
        yield replace(line, text=masks[line.job].text(line.text)) if line.job in masks else line


def _events_before(store: Store, time_ns: int) -> int:
    """How many events are older than ``time_ns``; the log is in order of time."""
    return bisect_left(range(store.last()[0]), time_ns, key=lambda n: next(store.read(n, 1)).time_ns)


_MARKS: Final[dict[str, EventMark]] = {
    "stop_asked": "kill",
    "retry_planned": "restart",
    "attempt_placed": "restart",
}


def event_lines(view: View, stored: StoredEvent) -> Iterator[EventLine]:
    """An event of the log in words; of marks those that tell something."""
    event = ev.decode(stored.kind, stored.body, stored.seq)
    if isinstance(event, ev.RankSaw):
        yield from (line for mark in event.marks if (line := _mark_line(view, event, mark)) is not None)
        return
    job = str(getattr(event, "job", ""))
    attempt = getattr(event, "attempt", None)
    mark: EventMark = _MARKS.get(stored.kind, "")
    if isinstance(event, ev.AttemptPlaced) and event.attempt == 1:
        mark = ""
    yield EventLine(stored.time_ns, stored.kind.replace("_", " "), job, attempt, None, _text(event), mark)


def _text(event: ev.Event) -> str:
    because: Reason | str | None = getattr(event, "because", None)  # of a check it is a plain text
    if isinstance(event, ev.NodeChecked):
        fit = {True: "fit", False: "not fit", None: "undecided"}[event.fit]
        return f"{event.node}, {event.tier}: {fit}" + (f", {event.because}" if event.because else "")
    if isinstance(event, ev.NodeTaken):
        return f"{event.node}: {event.because.text}"
    if isinstance(because, Reason):
        return because.text
    return because or _of_ranks(event) or _plain(event)


def _of_ranks(event: ev.Event) -> str:
    if isinstance(event, ev.RanksSilent):
        ranks = ", ".join(map(str, event.ranks))
        return f"rank {ranks} {'does not answer' if event.since_ns else 'answers again'}"
    if isinstance(event, ev.RankLanded):
        return f"rank {event.rank} got {', '.join(event.slices)} from {event.node}"
    return ""


def _plain(event: ev.Event) -> str:
    if isinstance(event, ev.JobSubmitted):
        command = Mask(event.spec.env, event.spec.command).command(event.spec.command)
        return f"by {event.spec.user or 'unknown'}: {' '.join(command)}"
    if isinstance(event, ev.ControllerStarted):
        return event.purpose
    if isinstance(event, ev.ControllerStopped):
        return event.why
    if isinstance(event, ev.UtilisationSeen):
        return f"its devices are {event.use}" if event.use != "unknown" else event.text
    if isinstance(event, ev.WatchSet):
        return f"{event.node}, {event.detector}: {event.why_not or 'watched'}"
    if isinstance(event, ev.ProfilerSet):
        return event.why_not or "running jobs are profiled"
    if isinstance(event, ev.SparesSet):
        return f"hot spares: {', '.join(event.nodes) or 'none'}"
    if isinstance(event, ev.MaintenanceSet):
        return f"{event.node}, by {event.by}" + ("" if event.until_ns else ": cancelled")
    if isinstance(event, ev.Predicted):
        return f"{event.what.replace('_', ' ')}, from {event.by}"
    return f"by {event.by}" if isinstance(event, ev.CancelAsked) else ""


def _mark_line(view: View, event: ev.RankSaw, mark: Mark) -> EventLine | None:
    attempt = view.jobs[event.job].attempts[event.attempt - 1]
    rank = attempt.ranks[event.rank]
    failed = rank.failed and (attempt.stop_ns is None or mark.t <= attempt.stop_ns)
    known: dict[str, tuple[str, EventMark]] = {
        "spawn": (f"process {mark.pid}", ""),
        "exit": (how_ended(rank), "failure" if failed else ""),
        "lost": (mark.text or "", "failure"),
        "saved": ("checkpoint durable" + (f" at step {mark.n}" if mark.n is not None else ""), "checkpoint"),
        "note": (mark.text or "", ""),
    }
    if mark.k not in known:
        return None
    text, kind = known[mark.k]
    return EventLine(mark.t, f"rank {mark.k}", event.job, event.attempt, event.rank, text, kind)

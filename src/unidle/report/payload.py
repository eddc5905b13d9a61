"""What the page's script reads: names, contexts, tracks, marks and table rows as plain JSON values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from unidle.ledger.taxonomy import GROUP_OF
from unidle.page.frame import visible
from unidle.report.advice import shell_line
from unidle.report.bars import PackedBars
from unidle.report.model import AttemptLine, EventLine, ReportData
from unidle.report.palette import ink_on, leaf_colour, rgb
from unidle.report.plot import figures
from unidle.report.tables import NAME_LIMIT, TEXT_LIMIT, Table
from unidle.report.totals import describe

MAX_MARKS = 20_000

Json = dict[str, object]


def payload(data: ReportData, packed: PackedBars, tables: Sequence[Table]) -> Json:
    """Times are whole ``unit_ns`` since the window's start; the start itself is text (beyond 2 ** 53)."""
    jobs = sorted({context[1] for context in packed.contexts} | {row.job for t in tables for row in t.rows})
    job_index = {job: k for k, job in enumerate(jobs)}
    leaves = sorted({context[0] for context in packed.contexts})
    names = {line.job: line.name for line in data.jobs}
    return {
        "start": str(data.window_start_ns),
        "unit": packed.unit_ns,
        "length": (data.window_end_ns - data.window_start_ns) / packed.unit_ns,
        "command": shell_line(("unidle", "ledger", "--store", data.store, "--format", "jsonl")),
        "leaves": [_leaf(leaf) for leaf in leaves],
        "jobs": [[job, visible(job, NAME_LIMIT), visible(names.get(job, ""), NAME_LIMIT)] for job in jobs],
        "contexts": [
            [leaves.index(leaf), job_index[job], attempt, how, visible(observer, NAME_LIMIT)]
            for leaf, job, attempt, how, observer in packed.contexts
        ],
        "tracks": [
            [t.label, visible(t.label, NAME_LIMIT), visible(t.node, NAME_LIMIT), visible(t.model, NAME_LIMIT)]
            + ([t.device] if t.slice else [])
            for t in data.devices
        ],
        "counts": packed.counts,
        "plots": _plots(data),
        "thinned": _thinned(packed),
        **_marks(data, packed.unit_ns, job_index),
        "tables": {table.id: _table(table, job_index) for table in tables},
    }


def _plots(data: ReportData) -> list[Json]:
    """The exact points of each picture in the order of the page; seconds from the start of its job."""
    return [
        {
            "seconds": (story.end_ns - story.start_ns) / 1e9,
            "after": str(story.start_ns - data.window_start_ns),
            "unit": unit,
            "points": [
                [
                    round((t - story.start_ns) / 1e9, 6),
                    None if value is None else float(f"{value:.6g}"),
                    curve.attempt,
                ]
                for curve in curves
                for t, value in curve.points
            ],
        }
        for story in data.stories
        for _, unit, curves in figures(story)
    ]


def _leaf(leaf: str) -> list[str]:
    group = GROUP_OF.get(leaf, "unseen")
    colour = leaf_colour(leaf, group)
    return [leaf, group, colour, ink_on(rgb(colour)), describe(leaf)]


def _thinned(packed: PackedBars) -> Json:
    return {
        "in": packed.bars_in,
        "out": packed.bars_out,
        "joined": packed.joined,
        "bucket": packed.bucket_ns,
    }


def _marks(data: ReportData, unit_ns: int, job_index: dict[str, int]) -> Json:
    """Each mark with the tracks it crosses: those of its attempt, its own rank's named apart."""
    track_of = {track.label: k for k, track in enumerate(data.devices)}
    ranks = {line.job: line.ranks for line in data.jobs}
    by_job: dict[str, list[int]] = defaultdict(list)
    for k, line in enumerate(data.attempts):
        by_job[line.job].append(k)
    marks = []
    for event in data.events:
        if not event.mark:
            continue
        gang = _gang(event, [(k, data.attempts[k]) for k in by_job[event.job]])
        attempt = data.attempts[gang] if gang >= 0 else None
        own = _own_track(attempt, event.rank, ranks.get(event.job, 0), track_of)
        at = (event.time_ns - data.window_start_ns) // unit_ns
        where = [gang, own, job_index.get(event.job, -1), event.attempt, event.rank]
        marks.append(
            [at, event.mark, *where, visible(event.kind, NAME_LIMIT), visible(event.text, TEXT_LIMIT)]
        )
    gangs = [[track_of[device] for device in a.devices if device in track_of] for a in data.attempts]
    return {"gangs": gangs, "marks": marks[-MAX_MARKS:]}


def _gang(event: EventLine, attempts: Sequence[tuple[int, AttemptLine]]) -> int:
    """The attempt that the event names, else the job's last one placed by then; -1 for none."""
    if event.attempt is not None:
        named = [k for k, line in attempts if line.attempt == event.attempt]
        if named:
            return named[0]
    placed = [k for k, line in attempts if line.placed_ns <= event.time_ns]
    return placed[-1] if placed else -1


def _own_track(attempt: AttemptLine | None, rank: int | None, ranks: int, track_of: dict[str, int]) -> int:
    """The first device of the rank: an attempt lists its devices in rank order."""
    if attempt is None or rank is None or ranks <= 0 or len(attempt.devices) % ranks or rank >= ranks:
        return -1
    first = rank * (len(attempt.devices) // ranks)
    return track_of.get(attempt.devices[first], -1) if first < len(attempt.devices) else -1


def _table(table: Table, job_index: dict[str, int]) -> Json:
    return {
        "leftOut": table.left_out,
        "rows": [[row.cells, job_index[row.job], row.attempt, row.device] for row in table.rows],
    }

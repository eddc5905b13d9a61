"""Where each nanosecond of each device goes in a simulated iteration: exactly one cause, those of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from unidle.ledger.columns import RowColumns, from_entries
from unidle.ledger.rows import Entry
from unidle.ledger.tables import JobInfo, SliceInfo
from unidle.span.simulate.routes import waits_over_wan
from unidle.span.simulate.timeline import compute_rows
from unidle.span.simulate.uneven import Member, Modelled, meeting_ns, members

LEAF_OF: Final = {
    "forward": "useful", "backward": "useful", "weight gradient": "useful", "recompute": "recompute",
    "transfer between sites": "exposed_wan", "transfer inside the site": "exposed_local", "all-reduce": "exposed_local",
    "other pipelines": "straggler_wait", "first input": "bubble", "another stage": "bubble", "end of the iteration": "bubble",
}  # fmt: skip
"""The leaf of the ledger for each cause; of those that are waits, what the device waits for."""

_CAUSE: Final = {"F": "forward", "B": "backward", "W": "weight gradient", "R": "recompute"}
OBSERVER: Final = "span"


class Spent(NamedTuple):
    """An interval of one device."""

    pipeline: int
    stage: int
    start_ns: int
    end_ns: int
    cause: str

    @property
    def leaf(self) -> str:
        return LEAF_OF[self.cause]


def spent(simulation: Modelled) -> Iterator[Spent]:
    """The intervals of each device that was simulated, one after the other: they tile ``[0, iteration)``.

    Pipelines of a group beyond its ``simulation.run.pipelines`` are like these. A device waits for what computes its input
    until that is made (a bubble), then for the transfer of it.
    """
    for member in members(simulation):
        yield from _member(simulation, member)


def _member(simulation: Modelled, member: Member) -> Iterator[Spent]:
    for pipeline in range(member.simulation.run.pipelines):
        for stage in range(len(simulation.setting.stages)):
            for each in _joined(_device(simulation, member, pipeline, stage)):
                yield each._replace(pipeline=member.pipelines[pipeline])


def causes(simulation: Modelled) -> dict[str, int]:
    """Nanoseconds of all devices by cause; they sum to devices times iteration exactly."""
    found = Counter[str]()
    for member in members(simulation):
        # The pipelines that were not simulated are like those that were, cell by cell.
        times = len(member.pipelines) // member.simulation.run.pipelines
        for each in _member(simulation, member):
            found[each.cause] += (each.end_ns - each.start_ns) * times
    return {cause: found[cause] for cause in LEAF_OF if found[cause]}


def columns(simulation: Modelled) -> RowColumns:
    """The same as rows of the ledger, ``modelled``, with the simulated devices as whole slices. Times begin at 0."""
    setting, told = simulation.setting, simulation.result
    places = [
        (each.pipelines[p], stage)
        for each in members(simulation)
        for p in range(each.simulation.run.pipelines)
        for stage in range(len(setting.stages))
    ]
    slices = [
        SliceInfo(setting.device(p, s), setting.device(p, s), setting.sites[setting.site_of[s]].name, 1_000_000, 0, told.iteration_ns)
        for p, s in places
    ]  # fmt: skip
    at = {place: k for k, place in enumerate(places)}
    entries = (
        Entry(
            (at[each.pipeline, each.stage],), each.start_ns, each.end_ns, each.leaf, told.schedule, 1, 0, "modelled", OBSERVER,
        )
        for each in spent(simulation)
    )  # fmt: skip
    return from_entries(entries, slices, [JobInfo(told.schedule)])


def _device(whole: Modelled, member: Member, pipeline: int, stage: int) -> Iterator[Spent]:
    simulation = member.simulation
    setting, program, run = simulation.setting, simulation.program, simulation.run
    at = pipeline * len(setting.stages) + stage
    waited = waits_over_wan(run.routes, setting.microbatches)[stage].tolist()
    made, ready = run.made[at].tolist(), run.ready[at].tolist()
    now = 0
    for row in compute_rows(setting, program, run, pipeline, pipeline, stage):
        begin, code = row.start_ns, row.chunk * setting.microbatches + row.microbatch
        if row.op != "F":
            code += program.units
        if begin > now:
            # A gradient is awaited from where the recompute before its backward could have ended.
            lead = row.end_ns - begin if row.op == "R" and program.early else 0
            until = now + min(max(made[code] - now - lead, 0), begin - now)
            yield Spent(pipeline, stage, now, until, "another stage" if now else "first input")
            wan = waited[code // setting.microbatches]
            moved = ready[code] > made[code]
            cause = (
                "transfer between sites" if wan else "transfer inside the site" if moved else "another stage"
            )
            yield Spent(pipeline, stage, until, begin, cause)
        yield Spent(pipeline, stage, begin, row.end_ns, _CAUSE[row.op])
        now = row.end_ns
    yield from _end(whole, pipeline, stage, now)


def _end(whole: Modelled, pipeline: int, stage: int, now: int) -> Iterator[Spent]:
    """After the last gradient of weights: the other pipelines, the all-reduce, the other stages.

    Unequal pipelines wait for each other even where their all-reduce takes no time.
    """
    length, several = whole.setting.reduce_ns(stage), len(members(whole)) > 1
    begin = meeting_ns(whole, stage) if length or several else now
    yield Spent(pipeline, stage, now, begin, "other pipelines")
    yield Spent(pipeline, stage, begin, begin + length, "all-reduce")
    yield Spent(pipeline, stage, begin + length, whole.result.iteration_ns, "end of the iteration")


def _joined(intervals: Iterable[Spent]) -> Iterator[Spent]:
    """Join adjacent intervals of the same cause; leave out empty ones."""
    held: Spent | None = None
    for each in intervals:
        if each.start_ns == each.end_ns:
            continue
        if held is not None and held.cause == each.cause:
            held = held._replace(end_ns=each.end_ns)
            continue
        if held is not None:
            yield held
        held = each
    if held is not None:
        yield held

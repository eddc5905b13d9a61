"""Checks a timeline by the rules alone: reads only rows and the setting, independent of the engine and of schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from unidle.span.model.cost import wire_ns
from unidle.span.model.setting import Setting
from unidle.span.simulate.timeline import OpRow

Unit = tuple[int, int, int, int]  # pipeline, stage, chunk, microbatch


@dataclass(frozen=True, slots=True)
class ScheduleTest:
    """What is wrong, in words (nothing: all rules hold), and the peak of memory over all devices."""

    problems: tuple[str, ...]
    peak_bytes: int


@dataclass(slots=True)
class _Books:
    setting: Setting
    chunks: int
    compute: dict[tuple[str, Unit], OpRow] = field(default_factory=dict)
    moves: dict[tuple[str, Unit], list[OpRow]] = field(default_factory=lambda: defaultdict(list))
    reduces: dict[int, list[OpRow]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    peak_bytes: int = 0

    def part(self, whole: int, chunk: int) -> int:
        return (chunk + 1) * whole // self.chunks - chunk * whole // self.chunks

    def wrong(self, what: str, row: OpRow) -> None:
        self.problems.append(
            f"{row.device_or_link}: {row.op} of microbatch {row.microbatch}, pipeline {row.pipeline}, at {row.start_ns}: {what}"
        )


def check(setting: Setting, rows: Iterable[OpRow], chunks: int = 1) -> ScheduleTest:
    """All rules, on all rows of an iteration."""
    books = _Books(setting, chunks)
    by_place: dict[str, list[OpRow]] = defaultdict(list)
    for row in rows:
        by_place[row.device_or_link].append(row)
        _enter(books, row)
    for there in by_place.values():
        _nothing_twice(books, there)
    for pipeline in range(setting.pipelines):
        for stage in range(len(setting.stages)):
            _device(books, pipeline, stage)
    _all_reduced(books)
    return ScheduleTest(tuple(books.problems), books.peak_bytes)


def _enter(books: _Books, row: OpRow) -> None:
    unit = (row.pipeline, row.stage, row.chunk, row.microbatch)
    if row.op == "allreduce":
        books.reduces[row.stage].append(row)
    elif row.op in ("send", "scatter", "gather"):
        books.moves[row.of, unit].append(row)
    elif (row.op, unit) in books.compute:
        books.wrong("is there twice", row)
    else:
        books.compute[row.op, unit] = row
        if row.device_or_link != books.setting.device(row.pipeline, row.stage):
            books.wrong("is on another device", row)


def _nothing_twice(books: _Books, rows: list[OpRow]) -> None:
    rows.sort(key=lambda row: (row.start_ns, row.end_ns))
    until = 0
    for row in rows:
        if row.start_ns < until:
            books.wrong("is used twice at once", row)
        if row.end_ns < row.start_ns:
            books.wrong("ends before it begins", row)
        until = max(until, row.end_ns)


def _device(books: _Books, pipeline: int, stage: int) -> None:
    setting, events = books.setting, list[tuple[int, int, int]]()
    shape = setting.stages[stage]
    for chunk in range(books.chunks):
        lasts = {
            "F": books.part(shape.forward_ns, chunk), "B": books.part(shape.backward_ns, chunk),
            "W": books.part(shape.weight_ns, chunk), "R": books.part(shape.recompute_ns, chunk),
        }  # fmt: skip
        kept, size = books.part(shape.kept_bytes, chunk), setting.entering_bytes(stage, chunk)
        for microbatch in range(setting.microbatches):
            unit = (pipeline, stage, chunk, microbatch)
            found = {op: books.compute.get((op, unit)) for op in lasts}
            forward, backward, weight, again = found["F"], found["B"], found["W"], found["R"]
            if forward is None or backward is None or weight is None:
                books.problems.append(
                    f"{setting.device(pipeline, stage)}: microbatch {microbatch} lacks F, B or W"
                )
                continue
            for op, row in found.items():
                if row is not None and row.end_ns - row.start_ns != lasts[op]:
                    books.wrong(f"lasts {row.end_ns - row.start_ns} ns, not {lasts[op]}", row)
            _depends(books, unit, forward, backward, weight, again)
            begins = again or backward
            if again is None and shape.recompute_ns:
                begins = forward
            events.append((forward.start_ns, 1, size))
            events.append((begins.start_ns, 1, kept))
            events.append((weight.end_ns, 0, -size - kept))
    _memory(books, setting.device(pipeline, stage), setting.held_bytes(stage), events)


def _depends(
    books: _Books, unit: Unit, forward: OpRow, backward: OpRow, weight: OpRow, again: OpRow | None
) -> None:
    pipeline, stage, chunk, microbatch = unit
    last = len(books.setting.stages) - 1
    if (stage, chunk) != (0, 0):
        source = (
            (pipeline, stage - 1, chunk, microbatch) if stage else (pipeline, last, chunk - 1, microbatch)
        )
        if forward.start_ns < _arrival(books, "F", source, stage):
            books.wrong("begins before its input is there", forward)
    if (stage, chunk) != (last, books.chunks - 1):
        source = (
            (pipeline, stage + 1, chunk, microbatch) if stage < last else (pipeline, 0, chunk + 1, microbatch)
        )
        if backward.start_ns < _arrival(books, "B", source, stage):
            books.wrong("begins before its gradient is there", backward)
    if backward.start_ns < (again or forward).end_ns or (again and again.start_ns < forward.end_ns):
        books.wrong("begins before what it needs was computed", backward)
    if weight.start_ns < backward.end_ns:
        books.wrong("begins before its backward has ended", weight)


def _arrival(books: _Books, of: str, source: Unit, to: int) -> int:
    """When the result of a unit is at the stage ``to``, by its transfers; those are checked on the way."""
    setting, made = books.setting, books.compute.get((of, source))
    if made is None:
        return 0  # that it is missing was reported already
    path, size = setting.path(source[1], to), setting.crossing_bytes(source[1], to)
    rows = books.moves.get((of, source), [])
    if path is None:
        free = setting.local is None or source[1] == to or not wire_ns(size, setting.local)
        for row in rows:
            if row.start_ns < made.end_ns:
                books.wrong("leaves before it is made", row)
        if not free and not rows:
            books.wrong("was never sent on", made)
        return max([made.end_ns, *(row.end_ns for row in rows)])
    sends = [row for row in rows if row.op == "send"]
    if sum(row.size_bytes for row in sends) != size:
        books.wrong(f"{sum(row.size_bytes for row in sends)} of {size} bytes arrive", made)
    for row in sends:
        if row.end_ns - row.start_ns < wire_ns(row.size_bytes, path.rate_gbps(None)):
            books.wrong("is faster than its link", row)
    return _collected(books, made, rows, sends, path.latency_ns)


def _collected(books: _Books, made: OpRow, rows: list[OpRow], sends: list[OpRow], latency_ns: int) -> int:
    scatters = sorted((row.start_ns, row.end_ns) for row in rows if row.op == "scatter")
    gathers = sorted((row.start_ns, row.end_ns) for row in rows if row.op == "gather")
    begins = sorted({row.start_ns for row in sends})
    for row in rows:
        if row.start_ns < made.end_ns:
            books.wrong("leaves before it is made", row)
    if not gathers:
        return max((row.end_ns for row in sends), default=0) + latency_ns
    if not len(begins) <= len(scatters) == len(gathers):
        books.wrong("is not scattered and gathered in the same pieces", made)
        return 0
    lasts = sorted((row.start_ns, row.end_ns) for row in sends)
    share = len(lasts) // len(gathers)
    for k, (scatter, gather) in enumerate(zip(scatters, gathers, strict=True)):
        group = lasts[k * share : (k + 1) * share]
        if group[0][0] < scatter[1]:
            books.wrong("is sent before it is scattered", made)
        if gather[0] < max(end for _, end in group) + latency_ns:
            books.wrong("is gathered before it is there", made)
    return max(end for _, end in gathers)


def _memory(books: _Books, device: str, held: int, events: list[tuple[int, int, int]]) -> None:
    setting = books.setting
    most = held
    for _, _, change in sorted(events):
        held += change
        most = max(most, held)
    books.peak_bytes = max(books.peak_bytes, most)
    if setting.memory_cap_bytes is not None and most > setting.memory_cap_bytes:
        books.problems.append(f"{device}: holds {most} bytes, {most - setting.memory_cap_bytes} over the cap")


def _all_reduced(books: _Books) -> None:
    setting = books.setting
    for stage in range(len(setting.stages)):
        ends = [row.end_ns for (op, unit), row in books.compute.items() if op == "W" and unit[1] == stage]
        for row in books.reduces.get(stage, []):
            if row.start_ns < max(ends, default=0):
                books.wrong("begins before all gradients are there", row)
        found, needed = len(books.reduces.get(stage, [])), setting.stages[stage].gradient_bytes
        if needed and setting.pipelines > 1 and setting.local is not None and found != setting.pipelines:
            books.problems.append(
                f"stage {stage}: {found} of {setting.pipelines} pipelines reduce their gradients"
            )

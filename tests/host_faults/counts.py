"""What must be zero after any fault: events lost, ranks started twice, two attempts at once, processes left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host_faults import rank as ranks
from host_faults.rig import Rig
from unidle.engine.local.ranks.rundir import JOURNAL
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.ledger.current import check_batches
from unidle.store import tools
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source
from unidle.view.state import View

Key = tuple[str, int, int]  # job, attempt, rank


@dataclass(slots=True)
class Counts:
    """Each is a list of what was found, in words; all of them are empty where all is well."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        for name in Counts.__slots__:
            getattr(self, name).extend(getattr(other, name))

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        return len(self.lost), len(self.doubled), len(self.overlaps), len(self.left)

    def words(self) -> list[str]:
        return [f"{name}: {one}" for name in Counts.__slots__ for one in getattr(self, name)]


def counted(rig: Rig, *, torn: bool = False) -> Counts:
    """What is wrong with all jobs so far, which have ended. ``torn``: journals were damaged on purpose."""
    found = Counts()
    store = open_store(str(rig.store), create=False, read_only=True)
    try:
        view = load_view(store)
        found.lost += _jobs(rig, view)
        found.lost += [f"store: {one}" for one in tools.check(store).problems]
        source = ledger_source(store, view)
        found.lost += [f"ledger: {one}" for one in check_batches(source.batches(source.extent()))]
        logged = _logged(store.read(), found)
    finally:
        store.close()
    for key, marks in logged.items():
        found.lost += _against_journals(rig.place, key, marks, torn=torn)
    starts = ranks.lines(str(rig.place), "starts")
    for key, count in Counter((one["job"], int(one["attempt"]), int(one["rank"])) for one in starts).items():
        if count > 1:
            found.doubled.append(f"{key} was started {count} times")
        if key not in logged:
            found.lost.append(f"{key} was started, and the log has nothing of it")
    for one in starts:
        if one["others"]:
            found.overlaps.append(
                f"{one['job']}: rank {one['rank']} of attempt {one['attempt']} while attempts lived: {one['others']}"
            )
    return found


def _jobs(rig: Rig, view: View) -> Iterator[str]:
    for job in rig.submitted:
        known = view.jobs.get(job)
        if known is None:
            yield f"{job} was acknowledged, and the log has nothing of it"
        elif not known.terminal:
            yield f"{job} is {known.state}"


def _logged(events: Any, found: Counts) -> dict[Key, list[Mark]]:
    """Marks of each rank; what is missing or twice among their numbers is noted."""
    marks: dict[Key, list[Mark]] = {}
    for stored in events:
        event = ev.decode(stored.kind, stored.body)
        if not isinstance(event, ev.RankSaw):
            continue
        key = (event.job, event.attempt, event.rank)
        known = marks.setdefault(key, [])
        if event.first > len(known):
            found.lost.append(f"{key}: marks {len(known)} to {event.first - 1} are not in the log")
        elif event.first < len(known):
            found.lost.append(f"{key}: mark {event.first} is twice in the log")
        known.extend(event.marks)
    return marks


def _against_journals(place: Path, key: Key, marks: list[Mark], *, torn: bool) -> Iterator[str]:
    """The log has what the host has; where the log ended a rank by fencing, only what the host had before."""
    job, attempt, rank = key
    journals = list(place.glob(f"n*/boxes/{job}/runs/{job}/{attempt}/rank{rank}/{JOURNAL}"))
    if len(journals) > 1:
        yield f"{key} has {len(journals)} journals: {journals}"
        return
    written = [_line(line) for line in journals[0].read_bytes().splitlines()] if journals else []
    last = marks[-1].k if marks else ""
    by_engine = last == "lost" and (len(written) < len(marks) or written[len(marks) - 1][0] != "lost")
    if torn or by_engine:
        marks = marks[:-1]
        written = written[: len(marks)]
    if torn:
        return
    logged = [
        (mark.k, 0 if mark.k == "lost" else mark.t) for mark in marks
    ]  # that of an end is bounded by the controller
    if len(written) != len(logged):
        yield f"{key}: {len(written)} marks on the host, {len(logged)} in the log"
    for number, (one, other) in enumerate(zip(written, logged, strict=False)):
        if one != other:
            yield f"{key}: mark {number} is {one} on the host, {other} in the log"
            return


def _line(line: bytes) -> tuple[str, int]:
    try:
        mark = json.loads(line)
        return mark["k"], 0 if mark["k"] == "lost" else mark["t"]
    except (ValueError, KeyError, TypeError):
        return "torn", 0

"""What has to hold after a run on the simulated disk: nothing acknowledged is lost, no rank ran twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from disk.client import digest
from unidle.ledger.columns import rows as part_rows
from unidle.ledger.current import check_batches
from unidle.ledger.export import standing_rows
from unidle.store import tools
from unidle.store.protocol import Store
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source
from unidle.view.state import View

Start = tuple[str, int, int]
"""Job, attempt, rank."""


def begun(view: View) -> set[Start]:
    """Ranks of which the log has marks: another boot must not start them again."""
    return {
        (job.id, attempt.number, rank)
        for job in view.jobs.values()
        for attempt in job.attempts
        for rank, seen in enumerate(attempt.ranks)
        if seen.count
    }


def lines(notes: Path, name: str) -> list[list[str]]:
    path = notes / name
    return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []


def lost(store: Store, view: View, notes: Path) -> list[str]:
    """What was acknowledged and is not in the log."""
    found = []
    events = {event.seq: digest(event.kind, event.body) for event in store.read()}
    for kind, *words in lines(notes, "client"):
        if kind == "submit" and words[0] not in view.jobs:
            found.append(f"job {words[0]} was acknowledged and is not there")
        elif kind == "cancel" and words[0] in view.jobs and view.jobs[words[0]].state != "cancelled":
            found.append(f"job {words[0]} was cancelled and is {view.jobs[words[0]].state}")
        elif kind == "saw" and events.get(int(words[0])) != words[1]:
            found.append(f"event {words[0]} was read by a client and is another one now, or none")
    for _, job, attempt, rank in starts(notes):
        known = view.jobs.get(job)
        if known is None or len(known.attempts) < int(attempt):
            found.append(f"rank {rank} of {job}/{attempt} ran and is not in the log")
    return found


def starts(notes: Path) -> list[list[str]]:
    return [line[:4] for line in lines(notes, "ranks") if line[0] == "start"]


def doubled(notes: Path, *, cut: bool, before: int, forbidden: set[Start]) -> list[str]:
    """Ranks that ran twice. ``before``: starts that were noted before the cut, which ended them all."""
    found = [f"{' '.join(line[1:4])}: two at once" for line in lines(notes, "ranks") if line[0] == "double"]
    all_starts = [(job, int(attempt), int(rank)) for _, job, attempt, rank in starts(notes)]
    for part in (all_starts[:before], all_starts[before:]) if cut else (all_starts,):
        found += [f"{start} was started {n} times" for start, n in Counter(part).items() if n > 1]
    found += [
        f"{start} was started again after the cut" for start in all_starts[before:] if start in forbidden
    ]
    return found


def unsound(store: Store, view: View) -> list[str]:
    """Damage of the store, a ledger that does not add up, jobs without an end."""
    found = list(tools.check(store).problems)
    source = ledger_source(store, view)
    found += [str(problem) for problem in check_batches(source.batches(source.extent()))]
    spent = sum(row.end_ns - row.start_ns for part in standing_rows(source) for row in part_rows(part))
    if view.jobs and not spent:
        found.append("the ledger is empty")
    found += [f"job {job.id} is {job.state}" for job in view.jobs.values() if not job.terminal]
    return found


def view_of(store: Store) -> View:
    return load_view(store)

"""Real hosts next to the local engine: restarts, starts, marks, a host that is cut off, and what a box and an agent cost at rest.

A controller, its agents and boxes run in network namespaces; a second controller has the local engine. Both are measured in
turn, so that what else the machine does hits both. Needs root and iproute2. Ranks are small Python programs
(`bench/jobs/boot_times.py`), whose own start is part of each time.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from _hosts_fleet import DEADLINE_S, HostsFleet, Store, event_of, until
from _process import cpu_s, memory_bytes
from _table import Row, main
from unidle.clock import boottime_ns
from unidle.events import types as ev

HOSTS = {"big": 3, "n1": 1, "n2": 1, "n3": 1}
POOLS = {"big": "one", "n1": "three", "n2": "three", "n3": "three"}
NEAR_S, NAMED_S, BACK_S = 0.3, 10.0, DEADLINE_S + 3.0
MARK_MS = 50.0
BOX_MB, BOX_PCT, AGENT_MB, AGENT_PCT = 15.0, 0.1, 60.0, 0.5
SETTLE_S = 6.0  # what a process imports and finds at its start is not rest
STEPS_PER_S = 20.0
RESTARTS = 1000
_MS = 1_000_000


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="unidle-bench-hosts.") as directory, ExitStack() as stack:
        fleet = HostsFleet(Path(directory), stack, HOSTS, POOLS)
        yield from rest(fleet, arguments.seconds)
        yield from marks(fleet, arguments.seconds)
        yield from starts(fleet, arguments.pairs)
        yield from restarts(fleet, arguments.pairs)
        yield from cuts(fleet, arguments.cuts)


def rest(fleet: HostsFleet, seconds: float) -> Iterator[Row]:
    """A box whose one rank is silent, the agent of its host, and that of a host where nothing runs."""
    job = fleet.store.submit(1, "one")
    fleet.store.begun(job, 1, 1)
    processes = {
        "box": fleet.box("big", job),
        "agent": fleet.agents["n1"].pid,
        "with a rank": fleet.agents["big"].pid,
    }
    time.sleep(SETTLE_S)
    before = {name: cpu_s(pid) for name, pid in processes.items()}
    began = time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - began
    used = {name: (cpu_s(pid) - before[name]) / wall * 100 for name, pid in processes.items()}
    memory = {name: [size / 1e6 for size in memory_bytes(pid)] for name, pid in processes.items()}
    fleet.store.cancel(job)
    how = f"measured here, {seconds:.0f} s after {SETTLE_S:.0f} s, one silent rank, a ping a second"
    for name, most_mb, most_pct in (("box", BOX_MB, BOX_PCT), ("agent", AGENT_MB, AGENT_PCT)):
        rss, pss = memory[name]
        yield _bounded(f"{name} at rest: resident memory (RSS)", "MB", rss, most_mb, how)
        yield _bounded(f"{name} at rest: its share of memory (PSS)", "MB", pss, most_mb, how)
        yield _bounded(f"{name} at rest: CPU", "% of one core", used[name], most_pct, how)
    yield Row("agent that looks at one rank: CPU", "% of one core", used["with a rank"], how=how)


def marks(fleet: HostsFleet, seconds: float) -> Iterator[Row]:
    """From a step's mark to the moment when a reader finds it in the log."""
    delays = {}
    for name, store in _both(fleet):
        job = store.submit(1, steps_per_s=STEPS_PER_S)
        store.begun(job, 1, 1)
        delays[name] = _delays_ms(store, job, seconds)
        store.cancel(job)
    ours, local = delays["hosts"], delays["local"]
    how = f"measured here, {len(ours)} and {len(local)} steps of one rank, {STEPS_PER_S:g} a second"
    for name, at in (("median", 0.5), ("p99", 0.99)):
        mine, peer = (sorted(each)[int(len(each) * at)] for each in (ours, local))
        goal = f"at most {MARK_MS:.0f}" if at > 0.5 else None
        yield Row(
            f"one rank's mark on a host to the log: {name}", "ms", mine, peer, "local engine", peer / mine, goal,
            mine <= MARK_MS if goal else None, how,
        )  # fmt: skip


def _delays_ms(store: Store, job: str, seconds: float) -> list[float]:
    offset_ns, found = store.offset_ns(), []
    for stored, read_ns in store.follow(boottime_ns() + int(seconds * 1e9)):
        event = event_of(stored) if stored.kind == "rank_saw" else None
        if isinstance(event, ev.RankSaw) and event.job == job:
            found += [(read_ns + offset_ns - mark.t) / _MS for mark in event.marks if mark.k == "step"]
    return found


def starts(fleet: HostsFleet, pairs: int) -> Iterator[Row]:
    """From the submission of three ranks to the first instruction of the last one: on three hosts, on one, on this machine."""
    kinds = {
        "three": (fleet.store, "three"),
        "one": (fleet.store, "one"),
        "local": (fleet.local, ""),
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(pairs + 1):
        for name, (store, pool) in kinds.items():
            asked_ns = boottime_ns()
            job = store.submit(3, pool)
            begun_ns = store.begun(job, 1, 3)
            store.cancel(job)
            if turn:  # the first one fills caches
                took[name].append((begun_ns - asked_ns) / 1e9)
    for ours, peer, goal in (("three", "one", True), ("one", "local", False)):
        names = {"three": "three hosts", "one": "one host", "local": "local engine"}
        yield _apart(
            f"submit to the first instruction of the last of 3 ranks, {names[ours]}", took[ours], took[peer],
            names[peer], goal=goal,
        )  # fmt: skip


def restarts(fleet: HostsFleet, pairs: int) -> Iterator[Row]:
    """Kill -9 of one of two ranks to the first step of both, on two hosts and on this machine."""
    jobs = {}
    for name, store in _both(fleet):
        jobs[name] = store.submit(2, "three" if name == "hosts" else "", restarts=RESTARTS)
        store.begun(jobs[name], 1, 2)
    took: dict[str, list[float]] = {name: [] for name in jobs}
    for attempt in range(1, pairs + 2):
        for name, store in _both(fleet):
            pid = store.pid(jobs[name], attempt, 1)
            killed_ns = boottime_ns()
            os.kill(pid, signal.SIGKILL)
            stepped_ns = store.stepped(jobs[name], attempt + 1, 2)
            if attempt > 1:
                took[name].append((stepped_ns - killed_ns) / 1e9)
    for name, store in _both(fleet):
        store.cancel(jobs[name])
    what = "kill -9 of a rank to the first step of both ranks again, two hosts"
    yield _apart(what, took["hosts"], took["local"], "local engine", goal=True)


def cuts(fleet: HostsFleet, count: int) -> Iterator[Row]:
    """A host is cut off: when the log names it, and when the gang steps elsewhere. It comes back after each time."""
    job = fleet.store.submit(2, "three", restarts=RESTARTS)
    named, back = [], []
    for attempt in range(1, count + 1):
        fleet.store.begun(job, attempt, 2)
        fleet.store.pid(job, attempt, 1)
        node = fleet.store.view().jobs[job].attempts[attempt - 1].places[1].node
        offset_ns = fleet.store.offset_ns()
        cut_ns = boottime_ns()
        fleet.lab.cut(node)
        named.append((_named_ns(fleet.store, node, cut_ns) - offset_ns - cut_ns) / 1e9)
        back.append((fleet.store.begun(job, attempt + 1, 2) - cut_ns) / 1e9)
        fleet.lab.mend(node)
        until(lambda node=node: _is_back(fleet.store, node), f"{node} to join again")  # type: ignore[misc]
    fleet.store.cancel(job)
    how = f"measured here, the longest of {count}, with a deadline of {DEADLINE_S} s; median {{:.1f}} s"
    yield _bounded(
        "a host is cut off: until the log names it",
        "s",
        max(named),
        NAMED_S,
        how.format(statistics.median(named)),
    )
    yield _bounded(
        "a host is cut off: until its gang runs elsewhere",
        "s",
        max(back),
        BACK_S,
        how.format(statistics.median(back)),
    )


def _named_ns(store: Store, node: str, since_ns: int) -> int:
    """When the log first had that ranks of the host do not answer, or that the host does not; on the log's clock."""

    def found() -> int | None:
        view = store.view()
        since = since_ns + view.clock_offset_ns
        opened = store.reader()
        try:
            for stored in opened.read():
                if stored.time_ns < since or stored.kind not in ("ranks_silent", "health_set"):
                    continue
                event = event_of(stored)
                if (isinstance(event, ev.RanksSilent) and event.since_ns) or (
                    isinstance(event, ev.HealthSet) and event.target == node and event.health == "fault"
                ):
                    return stored.time_ns
        finally:
            opened.close()
        return None

    return until(found, f"the log to name {node}")


def _is_back(store: Store, node: str) -> bool:
    """Whether the host takes jobs again."""
    view = store.view()
    known = view.node(node)
    return known is not None and not known.taints and node not in view.health


def _both(fleet: HostsFleet) -> Sequence[tuple[str, Store]]:
    return (("hosts", fleet.store), ("local", fleet.local))


def _bounded(what: str, unit: str, ours: float, most: float, how: str) -> Row:
    return Row(what, unit, ours, goal=f"at most {most:g}", holds=ours <= most, how=how)


def _apart(what: str, ours: Sequence[float], peers: Sequence[float], peer: str, *, goal: bool) -> Row:
    """A time next to its peer's; the goal is about the median of the differences of pairs."""
    apart = statistics.median(mine - theirs for mine, theirs in zip(ours, peers, strict=True))
    mine, theirs = statistics.median(ours), statistics.median(peers)
    how = (
        f"measured here, medians of {len(ours)} pairs ({min(ours):.2f} to {max(ours):.2f}; peer {min(peers):.2f} to"
        f" {max(peers):.2f}), apart by {apart:.3f} s"
    )
    text = f"apart by at most {NEAR_S:g}" if goal else None
    return Row(what, "s", mine, theirs, peer, theirs / mine, text, apart <= NEAR_S if goal else None, how)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=9, help="of starts and of restarts (default 9)")
    parser.add_argument("--cuts", type=int, default=3, help="how often a host is cut off (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long rest and marks are observed (default 30)"
    )


if __name__ == "__main__":
    main("hosts", rows, add_arguments)

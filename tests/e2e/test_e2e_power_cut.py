"""Power cuts at random moments: a real file system is shut down without a flush, and the next `up` is in another boot."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

import needs
import nightly
from e2e.power import PowerMachine
from unidle.control.inbox import SubmitRequest
from unidle.files.job import job_from_mapping
from unidle.ledger.columns import rows as part_rows
from unidle.ledger.current import check_batches
from unidle.ledger.export import standing_rows
from unidle.store import tools
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source
from unidle.view.state import View
from waiting import wait_until

pytestmark = [needs.root, needs.kernel_log, pytest.mark.slow]  # each cut is in the log of the kernel
CUTS = nightly.rounds(100, 12)
SETTLED_S = 60.0
DEVICES = 4
RANK = Path(__file__).with_name("power_rank.py")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[PowerMachine]:
    machine = PowerMachine(tmp_path)
    yield machine
    machine.close()


def submit(machine: PowerMachine, job: str, *, steps: int = 30, each_s: float = 0.05) -> None:
    fields = {
        "name": "gang", "command": [sys.executable, "-I", "-S", str(RANK), str(machine.place), str(steps), str(each_s)],
        "ranks": 2, "checkpoint": {"path": str(machine.place / f"saves.{job}")}, "grace_s": 1,
        "progress": {"pattern": "^step ([0-9]+)"}, "restart": {"max": 1000, "backoff_s": 0, "on": ["lost"]},
    }  # fmt: skip
    spec = job_from_mapping(fields, "test", machine.place)
    store = open_store(str(machine.store), create=False)
    store.request("submit", msgspec.json.encode(SubmitRequest(job, spec)))
    store.close()


def begun(view: View) -> dict[tuple[str, int], list[int]]:
    """Live attempts of which the log has marks, and the ranks that these are of."""
    found = {}
    for job in view.jobs.open.values():
        if (attempt := job.live) is not None:
            ranks = [k for k, rank in enumerate(attempt.ranks) if rank.count]
            if ranks:
                found[job.id, attempt.number] = ranks
    return found


def sound(machine: PowerMachine) -> None:
    """Store and ledger are whole, and no device was useful while the power was off."""
    store = open_store(str(machine.store), create=False, read_only=True)
    try:
        assert tools.check(store).ok
        source = ledger_source(store, load_view(store))
        assert not check_batches(source.batches(source.extent()))
    finally:
        store.close()


def test_random_power_cuts_end_in_the_right_state(machine: PowerMachine) -> None:
    chance = random.Random(21)
    known: dict[tuple[str, int], list[int]] = {}
    settled_s: list[float] = []
    powered_s, number, hurt = 0.0, 0, 0
    forbidden: set[tuple[int, str, str, str]] = set()  # the boot from which on a rank must not start again
    for cut in range(CUTS + 1):
        open_jobs = len(machine.view().jobs.open) if cut else 0
        for _ in range(open_jobs, 3):
            submit(machine, f"job-{number}", steps=chance.randrange(4, 60), each_s=chance.uniform(0.01, 0.06))
            number += 1
        seen = machine.view().seq
        machine.start()
        since = time.monotonic()

        def back(seen: int, known: dict[tuple[str, int], list[int]]) -> bool:
            assert machine.up is not None
            assert machine.up.poll() is None, machine.said()
            view = machine.view()
            return view.seq > seen and all(
                view.jobs[job].attempts[attempt - 1].ended_ns is not None for job, attempt in known
            )

        wait_until(partial(back, seen, known), SETTLED_S, f"the end of {known} after cut {cut}")
        settled_s.append(time.monotonic() - since)
        view = machine.view()
        for (job, attempt), ranks in known.items():
            ended = view.jobs[job].attempts[attempt - 1]
            if ended.outcome == "failed":
                hurt += 1
                assert any(ended.ranks[k].lost for k in ranks), (cut, job, attempt)
        if cut == CUTS:
            break
        if cut % 2:  # else the cut may come before any rank has started
            wait_until(lambda: begun(machine.view()), SETTLED_S, f"a rank to start after cut {cut}")
        time.sleep(chance.uniform(0, 0.5))  # the moment is what is tried; nothing is waited for
        machine.cut()
        powered_s += time.monotonic() - since
        known = begun(machine.view())
        forbidden |= {
            (machine.boots, job, str(attempt), str(k))
            for (job, attempt), ranks in known.items()
            for k in ranks
        }
    machine.kill_controller()
    machine.start("--until-idle")
    assert machine.up is not None
    assert machine.up.wait(120) == 0, machine.said()
    view = machine.view()
    assert {job.state for job in view.jobs.values()} == {"succeeded"}
    starts = [line.split() for line in (machine.place / "starts").read_text().splitlines()]
    assert max(Counter(map(tuple, starts)).values()) == 1
    again = [
        (boot, rest)
        for boot, *rest in starts
        for last in forbidden
        if list(last[1:]) == rest and int(boot) > last[0]
    ]
    assert not again
    # of the cuts that follow a start, many find the rank at work; of a dozen, chance and a busy machine leave fewer
    assert hurt >= nightly.rounds(CUTS // 4, 1)
    sound(machine)
    print(f"{CUTS} cuts, {hurt} attempts lost, {number} jobs; back within {max(settled_s):.1f} s at most")


def test_an_exit_that_no_controller_saw_survives_a_power_cut(machine: PowerMachine) -> None:
    submit(machine, "job", steps=12, each_s=0.2)
    machine.start()
    wait_until(lambda: (job := machine.view().jobs.get("job")) and job.steps() >= 2, 60, "steps")
    machine.kill_controller()
    runs = machine.store.with_name("s.db.d") / "runs" / "job" / "1"
    locks = [runs / f"rank{k}" / "reserve" for k in range(2)]
    wait_until(lambda: not any(lock.exists() for lock in locks), 60, "both supervisors to be done")
    machine.cut()
    machine.start("--until-idle")
    assert machine.up is not None
    assert machine.up.wait(60) == 0, machine.said()
    (job,) = machine.view().jobs.values()
    assert (job.state, len(job.attempts)) == ("succeeded", 1)
    assert job.steps() == 12


def test_what_is_lost_in_a_power_cut_is_not_useful_and_its_devices_are_free(machine: PowerMachine) -> None:
    submit(machine, "job", steps=1000, each_s=0.05)
    machine.start()
    wait_until(lambda: (job := machine.view().jobs.get("job")) and job.steps() >= 3, 60, "steps")
    machine.cut(long=False)  # the next `up` waits until the lease of the earlier boot expires
    ended_ns = machine.view().time_ns
    machine.start()
    wait_until(lambda: len(machine.view().jobs["job"].attempts) > 1, 60, "the next attempt")
    store = open_store(str(machine.store), create=False)
    store.request("cancel", msgspec.json.encode({"job": "job", "by": "test"}))
    store.close()
    wait_until(lambda: machine.view().jobs["job"].terminal, 60, "the end")
    view = machine.view()
    first = view.jobs["job"].attempts[0]
    assert (first.outcome, first.why.code if first.why else "") == ("failed", "rank_failed")
    assert not view.live
    store = open_store(str(machine.store), create=False, read_only=True)
    source = ledger_source(store, load_view(store))
    rows = [row for part in standing_rows(source) for row in part_rows(part) if row.attempt == 1]
    store.close()
    late = [row for row in rows if row.leaf == "useful" and row.end_ns > ended_ns]
    assert not late
    sound(machine)

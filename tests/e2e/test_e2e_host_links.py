"""Links between hosts that are measured before a gang starts: real agents in network namespaces, links slow or cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import needs
from e2e.commands import ask, unidle
from e2e.gangs import submit
from e2e.host_fleets import Fleet, opened
from unidle.drill.lab import Lab
from unidle.events import types as ev
from unidle.store.open import open_store
from unidle.view.jobs import JobView
from waiting import wait_until

FOUR = ("n1", "n2", "n3", "n4")
LEAST_GBPS = 0.01
SLOW_BITS = 500_000
GUARD = {
    "preflight": "off",
    "between": {"gbps": LEAST_GBPS, "measure": "0.3s"},
    "out": {"nodes": 2},
    "drain_hard": "0.3s",
    "drain": "1s",
}


@contextmanager
def fleet_of(place: Path, hosts: tuple[str, ...] = FOUR, **guard: object) -> Iterator[tuple[Fleet, Lab]]:
    file = place / "fleet.json"
    file.write_text(json.dumps({"guard": {**GUARD, **guard}}))
    lab = Lab(["hub", *hosts])
    try:
        with opened(place, hosts, file=file, lab=lab) as fleet:
            yield fleet, lab
    finally:
        lab.close()


def joined(fleet: Fleet) -> list[str]:
    """Hosts in the order in which gangs get them; the first two by name."""
    nodes = [node.id for node in fleet.view().fleet.nodes]
    return [*sorted(nodes[:2]), *nodes[2:]]


def checks(fleet: Fleet) -> list[ev.LinksChecked]:
    """The checks between nodes that the log has."""
    store = open_store(str(fleet.store), create=False, read_only=True)
    events = [ev.decode(e.kind, e.body) for e in store.read() if e.kind == "links_checked"]
    store.close()
    return [e for e in events if isinstance(e, ev.LinksChecked)]


def gang(fleet: Fleet, name: str, ranks: int) -> JobView:
    """A gang with a rank on each of so many hosts, once it has ended."""
    job = submit(fleet.store, fleet.place / f"{name}.json", "true", ranks=ranks, device="cpu")
    wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 240)
    found = fleet.view().jobs[job]
    assert found.state == "succeeded", [attempt.why for attempt in found.attempts]
    return found


def where(job: JobView) -> list[list[str]]:
    return [sorted({place.node for place in attempt.places}) for attempt in job.attempts]


def explained(fleet: Fleet, job: JobView, what: str) -> list[str]:
    told = ask("explain", job.id, "--store", fleet.store)
    return [one["text"] for one in told["decisions"] if one["what"] == what]


@needs.root
@needs.shaping
@needs.own_mounts
def test_good_links_are_measured_once_and_the_result_counts_for_the_next_gang(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, _):
        first = gang(fleet, "first", 3)
        [check] = checks(fleet)
        assert (check.fit, check.bad, list(check.nodes)) == (True, (), where(first)[0])
        [text] = explained(fleet, first, "checked")
        assert text.startswith("links between 3 nodes, ") and text.endswith(" ago")
        second = gang(fleet, "second", 2)
        assert {*where(second)[0]} <= {*check.nodes}
        assert len(checks(fleet)) == 1 and len(explained(fleet, second, "checked")) == 1


@needs.root
@needs.shaping
@needs.own_mounts
def test_of_a_slow_link_one_end_is_drained_and_the_gang_runs_elsewhere(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, lab):
        a, b, witness, _ = joined(fleet)
        lab.limit(a, b, SLOW_BITS)
        job = gang(fleet, "gang", 2)
        first, *_, last = where(job)
        assert first == [a, b] and last != first and b not in last
        check = checks(fleet)[0]
        assert (check.fit, check.bad) == (False, (b,))
        assert witness in check.nodes  # it took part, so that the ends could be compared
        stop = explained(fleet, job, "stop")[0]
        assert f"links: {b}: {a} 0.0" in stop and stop.count("Gbit/s") == 1
        assert fleet.view().health.get(b) == "quarantine"
        assert all(rank.spawn_ns is None for rank in job.attempts[0].ranks)


@needs.root
@needs.shaping
@needs.own_mounts
def test_a_host_that_others_do_not_reach_is_drained_although_its_agent_answers(tmp_path: Path) -> None:
    with fleet_of(tmp_path) as (fleet, lab):
        a, b, bad, spare = joined(fleet)
        for other in (a, b, spare):
            lab.cut(bad, other)
        job = gang(fleet, "gang", 3)
        first, *_, last = where(job)
        assert first == sorted((a, b, bad)) and last == sorted((a, b, spare))
        assert checks(fleet)[0].bad == (bad,)
        stop = explained(fleet, job, "stop")[0]
        assert f"links: {bad}: " in stop and "not reached" in stop


@needs.root
@needs.shaping
@needs.own_mounts
def test_two_hosts_alone_start_although_their_link_is_slow_and_it_is_said(tmp_path: Path) -> None:
    with fleet_of(tmp_path, FOUR[:2], quick={"tries": 2, "pause": "0.1s"}) as (fleet, lab):
        lab.limit("n1", "n2", SLOW_BITS)
        job = gang(fleet, "gang", 2)
        assert [(check.fit, check.bad) for check in checks(fleet)] == [(None, ()), (None, ())]
        [text] = explained(fleet, job, "checked")
        assert text.startswith("which end is bad is not known: n1 and n2: 0.0")
        assert text.endswith("the job starts nevertheless")
        assert len(job.attempts) == 1


@needs.root
@needs.shaping
@needs.own_mounts
def test_the_links_of_a_running_fleet_are_checked_on_request_and_nothing_is_drained(tmp_path: Path) -> None:
    with fleet_of(tmp_path, FOUR[:3]) as (fleet, lab):
        words = ("check", "--between", "n[1-3]", "--store", fleet.store)
        good = unidle(*words, timeout_s=150)
        assert (good.returncode, good.stderr) == (0, "") and good.stdout.startswith(
            "fit: links between 3 nodes, "
        )
        lab.limit("n1", "n3", SLOW_BITS)
        bad = unidle(*words, "--json", timeout_s=150)
        told = json.loads(bad.stdout)
        assert (bad.returncode, told["ok"], told["bad"]) == (1, False, ["n3"])
        assert "n3: n1 0.0" in told["because"]
        assert not fleet.view().health
        unknown = unidle("check", "--between", "n1,n9", "--store", fleet.store)
        assert unknown.returncode == 2 and "no such node" in unknown.stderr
        alone = unidle("check", "--between", "n1", "--store", fleet.store)
        assert alone.returncode == 2 and "needs two nodes or more" in alone.stderr

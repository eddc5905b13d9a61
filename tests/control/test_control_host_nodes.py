"""Nodes that are hosts: which checks they get, what counts of their answers, and that answering is no proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control.remedy_worlds import RemedyWorld
from unidle.control.nodes.remedies import judged
from unidle.control.nodes.used_directories import UsedDirectories
from unidle.engine.node_commands import NodeCheck, NodeCommand, NodeOutcome
from unidle.engine.protocol import HealthChange
from unidle.guard.remedy_model import RemedyResult
from unidle.jobs import Reason

FLEET = {
    "nodes": [{"id": "n[1-3]", "devices": {"count": 1, "kind": "gpu"}}],
    "guard": {"preflight": "quick", "probation": "20s", "probation_every": "8s"},
}
LONG = {"does": {"work_s": 5000, "step_s": 1}}


class Hosts:
    """A world whose nodes are machines of their own; ``gone`` do not answer."""

    def __init__(self, jobs: dict[str, dict[str, Any]], script: dict[str, list[dict[str, Any]]]) -> None:
        self.world = RemedyWorld(FLEET, jobs, script)
        assert self.world.commands is not None
        self.orders: list[NodeCommand] = []
        self.gone: dict[str, str] = {}
        commands, begin = self.world.commands, self.world.commands.begin

        def noted(order: NodeCommand) -> None:
            if order not in self.orders:
                self.orders.append(order)
            begin(order)

        commands.elsewhere = True
        commands.begin = noted  # type: ignore[method-assign]
        commands.away = lambda node: self.gone.get(node, "")  # type: ignore[method-assign]


def test_each_host_of_a_gang_is_checked_though_all_have_one_address() -> None:
    hosts = Hosts({"a": {"ranks": 2, **LONG}}, {"quick": [{"after_s": 1}]})
    hosts.world.submit("a")
    hosts.world.until(3)
    assert {node.address for node in hosts.world.controller.view.fleet.nodes} == {"127.0.0.1"}
    assert sorted(order.node for order in hosts.orders) == ["n1", "n2"]
    assert hosts.world.job("a").state == "running"


def test_a_gang_goes_elsewhere_when_a_host_stops_to_answer_during_its_check() -> None:
    hosts = Hosts({"a": {"ranks": 2, **LONG}}, {"quick": [{"after_s": 1}, {"never": True}, {"after_s": 1}]})
    world = hosts.world
    world.submit("a")
    world.until(3)
    assert [order.node for order in hosts.orders] == ["n1", "n2"]
    hosts.gone["n2"] = "host n2 does not answer"
    world.controller._take(HealthChange("n2", "fault", Reason("host_silent", "host n2 has not answered")))
    world.until(10)
    job = world.job("a")
    assert [sorted(p.node for p in one.places) for one in job.attempts] == [["n1", "n2"], ["n1", "n3"]]
    assert job.attempts[0].stop is not None and job.attempts[0].stop.why == "node_sick"
    assert job.attempts[0].stop.because.text == "host n2 does not answer"
    assert job.state == "running" and job.retries == 0
    assert job.attempts[0].checked_ns is not None and job.attempts[0].ranks[0].spawn_ns is None


def test_the_result_of_a_check_is_of_when_it_ended_also_if_its_gang_is_gone() -> None:
    hosts = Hosts({"a": LONG, "b": LONG}, {"quick": [{"after_s": 5}]})
    world = hosts.world
    world.submit("a")
    world.until(2)
    world.controller.cancel("a", "ann")
    world.until(100)
    [checks] = world.controller.view.care.checks.values()
    assert (checks[0].at_ns - 1) // 10**9 == 5


def test_that_a_host_answers_again_does_not_bring_a_node_back_that_is_not_proven() -> None:
    hosts = Hosts({}, {"prove": [{"after_s": 50}]})
    world = hosts.world
    world.until(1)
    world.fault("n1", "drain")
    world.until(3)
    world.ask("return", "n1")
    world.until(5)
    view = world.controller.view
    assert view.care.targets["n1"].state == "proving" and view.health["n1"] == "quarantine"
    for health in ("fault", "healthy"):
        world.controller._take(HealthChange("n1", health, Reason("host_answers", "")))  # type: ignore[arg-type]
        assert view.health["n1"] == "quarantine"
    world.until(120)
    assert "n1" not in view.care.targets and "n1" not in view.health


def test_a_host_that_does_not_answer_stays_down_while_it_is_drained() -> None:
    hosts = Hosts({"a": {**LONG, "checkpoint": {"path": "c"}}}, {})
    world = hosts.world
    world.submit("a")
    world.until(5)
    world.controller._take(HealthChange("n1", "fault", Reason("host_silent", "")))
    world.ask("drain", "n1")
    world.until(6)
    view = world.controller.view
    assert view.care.targets["n1"].state == "draining" and view.health["n1"] == "fault"
    world.controller._take(HealthChange("n1", "healthy", Reason("host_answers", "")))
    assert "n1" not in view.health


def test_a_host_gets_the_directories_of_its_own_jobs_and_of_those_that_wait(tmp_path: Path) -> None:
    a, b, c = (str(tmp_path / name) for name in "abc")
    jobs: dict[str, dict[str, Any]] = {
        "a": {"ranks": 2, **LONG, "workdir": a},
        "b": {**LONG, "workdir": b, "checkpoint": {"path": "c"}},
        "c": {"ranks": 3, **LONG, "workdir": c},
    }
    for name in jobs:
        (tmp_path / name).mkdir()
    hosts = Hosts(jobs, {"quick": [{"after_s": 1}]})
    for job in jobs:
        hosts.world.submit(job)
    hosts.world.until(3)
    view = hosts.world.controller.view
    assert sorted(view.live) == ["a", "b"]

    def used(*, elsewhere: bool, waiting: bool) -> list[tuple[str, ...]]:
        found = UsedDirectories(view, elsewhere=elsewhere, waiting=waiting)
        return [found.of(node) for node in ("n1", "n3", "n9")]

    assert used(elsewhere=True, waiting=False) == [(a,), (b, f"{b}/c"), ()]
    assert used(elsewhere=True, waiting=True) == [(a, c), (b, f"{b}/c", c), (c,)]
    assert used(elsewhere=False, waiting=False) == [(a, b, f"{b}/c")] * 3
    given = {order.node: order.what.used for order in hosts.orders if isinstance(order.what, NodeCheck)}
    assert given == {"n1": (a,), "n2": (a,), "n3": (b, f"{b}/c")}


def test_directories_of_a_check_are_bounded() -> None:
    jobs = {f"j{n}": {**LONG, "checkpoint": {"path": f"{n}/{'x' * 200}/" * 5}} for n in range(300)}
    hosts = Hosts(jobs, {"quick": [{"never": True}]})
    for job in jobs:
        hosts.world.submit(job)
    hosts.world.until(1)
    found = UsedDirectories(hosts.world.controller.view, elsewhere=True, waiting=True).of("n1")
    assert 100 < len(found) < 200


@pytest.mark.parametrize(
    ("what", "outcome", "answer"),
    [
        ("quick", NodeOutcome(0, False, ""), "ok"),
        ("quick", NodeOutcome(1, False, ""), "failed"),
        ("quick", NodeOutcome(3, False, ""), "silent"),
        ("quick", NodeOutcome(-9, False, ""), "silent"),
        ("quick", NodeOutcome(None, True, ""), "silent"),
        ("quick", NodeOutcome(None, False, "", restarted=True), "silent"),
        ("standard", NodeOutcome(None, False, "", away=True), "away"),
        ("reboot", NodeOutcome(3, False, ""), "failed"),
        ("reboot", NodeOutcome(None, False, "", restarted=True), "ok"),
        ("reset_gpu", NodeOutcome(None, False, "", restarted=True), "silent"),
        ("reboot", NodeOutcome(None, False, "", away=True), "away"),
    ],
)
def test_what_an_outcome_proves(what: str, outcome: NodeOutcome, answer: str) -> None:
    assert judged(what, outcome).answer == answer


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        json.dumps({"checks": [{"ok": False, "name": "x\x1b[31m", "because": "\ud800"}]}),
        json.dumps({"checks": [{"ok": False, "name": ["x"] * 1000, "because": 0}]}),
        json.dumps({"checks": 3}),
        json.dumps(["checks"]),
        "\x1b]0;title\x07\n\ud800",
        "x" * 100_000,
    ],
)
def test_whatever_a_host_answers_the_log_can_have_it(text: str) -> None:
    found = judged("quick", NodeOutcome(1, False, text))
    assert isinstance(found, RemedyResult) and found.answer == "failed"
    assert found.text.isprintable() and 0 < len(found.text) <= 200
    msgspec.json.encode(found)


def test_a_check_that_could_not_tell_counts_for_the_gang_that_asked_and_for_a_moment() -> None:
    fleet = FLEET | {
        "guard": {"preflight": "auto"},
        "nodes": [{"id": "n1", "devices": {"count": 1, "kind": "gpu"}}, {"id": "n2"}],
    }
    job = {"ranks": 1, "devices_per_rank": 1, "does": {"work_s": 5, "step_s": 1}}
    world = RemedyWorld(fleet, {"a": job, "b": job, "c": job}, {"quick": [{"code": 3}, {"code": 0}]})
    assert world.commands is not None
    world.commands.elsewhere = True
    begun: list[str] = []
    begin = world.commands.begin

    def noted(order: NodeCommand) -> None:
        if order.name not in begun:
            begun.append(order.name)
        begin(order)

    world.commands.begin = noted  # type: ignore[method-assign]
    world.submit("a")
    world.until(3)
    assert (world.job("a").state, len(begun)) == ("running", 1)
    world.until(15)
    world.submit("b")
    world.until(30)
    assert (world.job("b").state, len(begun)) == ("succeeded", 2)  # checked, now that it can be
    world.submit("c")
    world.until(45)
    assert (world.job("c").state, len(begun)) == ("succeeded", 2)

"""A node that a person returns is checked by what the kernel logged after the return."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from control.remedy_worlds import RemedyWorld
from unidle.agent.orders import CheckOrder, Orders
from unidle.engine.local.commands.runner import check_words
from unidle.engine.node_commands import NodeCheck, NodeCommand

FLEET = {
    "nodes": [{"id": "n[1-2]", "devices": {"count": 1, "kind": "gpu"}}],
    "guard": {"preflight": "off", "probation": "20s", "probation_every": "8s"},
}
S = 1_000_000_000


def watched(world: RemedyWorld) -> dict[str, NodeCheck]:
    """The checks that are begun from now on, by name."""
    checks: dict[str, NodeCheck] = {}
    assert world.commands is not None
    begin = world.commands.begin

    def noted(order: NodeCommand) -> None:
        assert isinstance(order.what, NodeCheck)
        checks.setdefault(order.name, order.what)
        begin(order)

    world.commands.begin = noted  # type: ignore[method-assign]
    return checks


def limits(checks: dict[str, NodeCheck]) -> list[int | None]:
    """From when on the kernel log counts, of each check."""
    return [one.log_since_ns for one in checks.values()]


def test_a_node_that_is_returned_is_checked_by_later_lines_only():
    world = RemedyWorld(FLEET, {}, {"prove": [{"after_s": 2}], "quick": [{"after_s": 1}]})
    checks = watched(world)
    world.until(1)
    world.fault("n1", "replace")
    world.until(500)
    assert world.controller.view.care.targets["n1"].state == "out" and limits(checks) == []
    world.ask("return", "n1")
    world.until(550)
    assert "n1" not in world.controller.view.care.targets
    first, *others = limits(checks)
    assert first is not None and 500 * S <= first < 501 * S and others
    assert set(others) == {first}  # on probation: all since the return, whenever the check begins


def test_a_check_has_the_directories_of_all_jobs_that_have_not_ended():
    jobs = {"big": {"ranks": 2, "checkpoint": {"path": "c"}, "does": {"work_s": 5000, "step_s": 1}}}
    world = RemedyWorld(FLEET, jobs, {"prove": [{"after_s": 2}]})
    checks = watched(world)
    world.submit("big")
    world.until(1)
    world.fault("n1", "drain")
    world.until(310)  # it is stopped after the time to drain, and waits for two nodes
    assert not world.controller.view.live and checks
    workdir = os.path.abspath(world.job("big").spec.workdir)  # noqa: PTH100
    assert all({workdir, f"{workdir}/c"} <= set(one.used) for one in checks.values())


def test_checks_of_declared_nodes_read_the_kernel_logs_of_the_fleet_file_each_its_own():
    logs = {"n1": "off", "n2": "/var/log/n2.log", "n3": "", "n4": ""}
    nodes = [
        {"id": name, "devices": {"count": 1, "kind": "gpu"}} | ({"watch": {"kernel_log": log}} if log else {})
        for name, log in logs.items()
    ]
    world = RemedyWorld(
        {"nodes": nodes, "guard": {"preflight": "quick"}}, {"all": {"ranks": 4, "does": {"work_s": 5}}}, {}
    )
    checks = watched(world)
    world.submit("all")
    world.until(30)
    assert sorted(one.kernel_log for one in checks.values()) == ["", "/var/log/n2.log", "off"]
    assert "--kernel-log=off" in check_words("n1", NodeCheck("quick", kernel_log="off"), 0)


def test_an_agent_in_a_pod_checks_the_whole_node(tmp_path: Path):
    assert "--whole-node" not in check_words("n1", NodeCheck("quick"), 0)
    body = {"name": "one", "limit_ns": S}
    for whole in (False, True):
        orders = Orders(tmp_path / str(whole), "n1", hooks=False, whole_node=whole)
        words, _ = orders._words(msgspec.convert(body, CheckOrder))
        assert ("--whole-node" in words) is whole


def test_the_moment_of_a_check_is_in_seconds_since_boot_and_without_one_all_lines_count():
    assert not any("--log" in word for word in check_words("n1", NodeCheck("standard"), 2 * S))
    words = check_words("n1", NodeCheck("standard", 5 * S), 2 * S)
    assert words[words.index("--log-since") + 1] == "3.000"
    words = check_words("n1", NodeCheck("standard", S), 2 * S)  # the machine was started after it
    assert words[words.index("--log-since") + 1] == "0.000"

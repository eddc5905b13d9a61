"""A node that a person returns is checked by what the kernel logged after the return."""

from __future__ import annotations

import os

from control.remedy_worlds import RemedyWorld
from unidle.control.nodes.hooks import HookOrder
from unidle.control.nodes.remedies import check_words, log_since_s

FLEET = {
    "nodes": [{"id": "n[1-2]", "devices": {"count": 1, "kind": "gpu"}}],
    "guard": {"preflight": "off", "probation": "20s", "probation_every": "8s"},
}
S = 1_000_000_000


def watched(world: RemedyWorld) -> dict[str, tuple[str, ...]]:
    """The words of the checks that are begun from now on, by name."""
    words: dict[str, tuple[str, ...]] = {}
    assert world.hands is not None
    begin = world.hands.begin

    def noted(order: HookOrder) -> None:
        words.setdefault(order.name, order.words)
        begin(order)

    world.hands.begin = noted  # type: ignore[method-assign]
    return words


def limits(words: dict[str, tuple[str, ...]]) -> list[float | None]:
    """From which second since boot on the kernel log counts, of each check."""
    return [
        float(one[one.index("--log-since") + 1]) if "--log-since" in one else None for one in words.values()
    ]


def test_a_node_that_is_returned_is_checked_by_later_lines_only():
    world = RemedyWorld(FLEET, {}, {"prove": [{"after_s": 2}], "quick": [{"after_s": 1}]})
    words = watched(world)
    world.until(1)
    world.fault("n1", "replace")
    world.until(500)
    view = world.controller.view
    assert view.care.targets["n1"].state == "out" and limits(words) == []
    world.ask("return", "n1")
    world.until(550)
    assert "n1" not in view.care.targets
    first, *others = limits(words)
    assert first is not None and others
    returned = (500 * S - view.clock_offset_ns) / S
    assert returned <= first < returned + 1
    assert set(others) == {first}  # on probation: all since the return, whenever the check begins


def test_a_check_has_the_directories_of_all_jobs_that_have_not_ended():
    jobs = {"big": {"ranks": 2, "checkpoint": {"path": "c"}, "does": {"work_s": 5000, "step_s": 1}}}
    world = RemedyWorld(FLEET, jobs, {"prove": [{"after_s": 2}]})
    words = watched(world)
    world.submit("big")
    world.until(1)
    world.fault("n1", "drain")
    world.until(310)  # it is stopped after the time to drain, and waits for two nodes
    assert not world.controller.view.live and words
    workdir = os.path.abspath(world.job("big").spec.workdir)  # noqa: PTH100
    assert all({f"--used={workdir}", f"--used={workdir}/c"} <= set(one) for one in words.values())


def test_a_node_that_nobody_returned_is_checked_by_all_lines_since_boot():
    assert log_since_s(0, -5 * S) is None
    assert "--log-since" not in check_words(None, "n1", "standard")
    assert check_words(None, "n1", "standard", 3.25)[-2:] == ("--log-since", "3.250")


def test_a_return_before_the_last_boot_leaves_all_lines_since_boot():
    assert log_since_s(12 * S, 10 * S) == 2.0
    assert log_since_s(8 * S, 10 * S) == 0.0

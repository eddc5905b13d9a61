"""The checker finds what is wrong in a timeline: each fault is planted into one that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.simulate.check import check
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.schedules import SCHEDULES
from unidle.span.simulate.timeline import OpRow

STAGE = Stage(100, 110, 90, 100, 3400, 600)
SETTING = Setting(
    (STAGE,) * 3, 4, (Site("a", 1), Site("b", 2)), (WanLink("a", "b", 70, 40.0),), 4, 2, 200, 50, 50 + 4 * 200 + 3400 + 5000,
    400.0,
)  # fmt: skip
Change = Callable[[OpRow], OpRow]


def timeline(name: str = "atlas", setting: Setting = SETTING) -> list[OpRow]:
    return list(simulate(setting, SCHEDULES[name], checked=False).rows())


def planted(rows: list[OpRow], op: str, change: Change | None, nth: int = -1) -> list[OpRow]:
    """The rows with one of ``op`` changed, or left out."""
    at = [k for k, row in enumerate(rows) if row.op == op][nth]
    return [*rows[:at], *([] if change is None else [change(rows[at])]), *rows[at + 1 :]]


def earlier(by: int) -> Change:
    return lambda row: row._replace(start_ns=row.start_ns - by, end_ns=row.end_ns - by)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_right_passes(name: str) -> None:
    assert check(SETTING, timeline(name), 2 if name == "interleaved" else 1).problems == ()


@pytest.mark.parametrize(
    ("op", "change", "words"),
    [
        ("F", None, "lacks F, B or W"),
        ("W", None, "lacks F, B or W"),
        ("F", earlier(500), "before its input"),
        ("B", earlier(1), "before"),
        ("W", earlier(300), "before its backward has ended"),
        ("F", lambda row: row._replace(end_ns=row.end_ns - 1), "lasts 99 ns, not 100"),
        ("B", lambda row: row._replace(microbatch=0), "twice"),
        ("F", lambda row: row._replace(device_or_link="a/0/0"), "another device"),
        ("send", None, "bytes arrive"),
        ("send", lambda row: row._replace(size_bytes=row.size_bytes - 1), "bytes arrive"),
        ("send", lambda row: row._replace(end_ns=row.end_ns - 5), "faster than its link"),
        ("send", earlier(5), "in the same pieces"),
        ("scatter", earlier(10_000), "before it is made"),
        ("scatter", None, "in the same pieces"),
        ("gather", earlier(3), "before it is there"),
        ("allreduce", earlier(1), "before all gradients"),
        ("allreduce", None, "3 of 4 pipelines"),
    ],
)
def test_a_planted_fault_is_found(op: str, change: Change | None, words: str) -> None:
    tight = Setting(
        SETTING.stages, 4, SETTING.sites, SETTING.links, 4, 2, 200, 50, 50 + 4 * 200 + 3400, 400.0
    )
    rows = timeline("atlas", tight)
    found = check(tight, planted(rows, op, change)).problems
    assert any(words in problem for problem in found), found


def test_a_recompute_that_is_missing_means_that_more_was_held() -> None:
    tight = replace(SETTING, memory_cap_bytes=50 + 4 * 200 + 3400)
    rows = planted(timeline("atlas", tight), "R", None, nth=1)
    assert any("over the cap" in problem for problem in check(tight, rows).problems)


def test_two_transfers_at_once_on_one_link_are_found() -> None:
    rows = timeline("gpipe")
    sends = [k for k, row in enumerate(rows) if row.device_or_link == "a/0/0>b/0/1"]
    first, second = rows[sends[0]], rows[sends[1]]
    length = second.end_ns - second.start_ns
    rows[sends[1]] = second._replace(start_ns=first.end_ns - 1, end_ns=first.end_ns - 1 + length)
    assert any("twice at once" in problem for problem in check(SETTING, rows).problems)


def test_memory_over_the_cap_is_found() -> None:
    rows = timeline("gpipe", replace(SETTING, memory_cap_bytes=None))
    tight = replace(SETTING, memory_cap_bytes=50 + 3 * 200 + 3400)
    assert any("200 over the cap" in problem for problem in check(tight, rows).problems)

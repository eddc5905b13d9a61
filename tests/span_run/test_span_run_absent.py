"""What a run does without, and when it could have it back."""

from __future__ import annotations

from itertools import combinations, pairwise

from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.replan.absent import AbsentSites, Unreachable


def run(links: str, sites: str = "abcd") -> AbsentSites:
    """One pipeline over four sites, linked as named."""
    joined = tuple(WanLink(a, b, 1, 1.0) for a, b in links.split())
    stages = (Stage(1, 1, 1),) * len(sites)
    setting = Setting(stages, 2, tuple(Site(name, 1) for name in sites), joined)
    return AbsentSites(setting, [f"{name}/0/{k}" for k, name in enumerate(sites)])


CHAIN = " ".join(a + b for a, b in pairwise("abcd"))
MESH = " ".join(a + b for a, b in combinations("abcd", 2))


def test_all_that_is_lost_with_a_link_comes_back_together_when_it_is_up_again() -> None:
    absent = run(CHAIN)
    assert absent.cut(absent.whole, "b", "c") == {"c", "d"}
    absent.begin()
    assert list(absent.ways_back()) == []
    absent.hear("c/0/2", ["a/0/0"])
    absent.hear("d/0/3", ["a/0/0", "b/0/1"])
    assert absent.gone not in absent.ways_back()
    # Each way back still lacks the link of b and c, or c and d have no way to the others.
    assert all(gone.links or gone.sites == {"c"} for gone in absent.ways_back())
    absent.hear("c/0/2", ["a/0/0", "b/0/1"])
    assert next(absent.ways_back()) == Unreachable()


def test_a_site_that_only_one_other_does_not_reach_comes_back_without_that_link() -> None:
    absent = run(MESH)
    assert absent.cut(absent.whole, "c", "d") == {"d"}
    absent.begin()
    absent.hear("d/0/3", ["a/0/0", "b/0/1"])
    assert list(absent.ways_back()) == [Unreachable(frozenset(), frozenset({frozenset("cd")}))]
    assert str(Unreachable(frozenset(), frozenset({frozenset("cd")}))) == "the link of c and d"


def test_sites_that_no_plan_joins_need_not_reach_each_other() -> None:
    absent = run(CHAIN)
    absent.leave_out("d")
    absent.hear("d/0/3", ["c/0/2"])
    assert next(absent.ways_back()) == Unreachable()


def test_who_does_not_answer_all_devices_of_a_site_does_not_answer_it() -> None:
    absent = run(MESH)
    absent.devices = [*absent.devices, "d/1/3"]
    absent.leave_out("d")
    absent.hear("d/0/3", ["a/0/0", "b/0/1", "c/0/2"])
    assert list(absent.ways_back()) == []
    absent.hear("d/1/3", ["a/1/0", "c/1/2"])
    assert next(absent.ways_back()) == Unreachable(frozenset(), frozenset({frozenset("bd")}))
    absent.begin()
    assert list(absent.ways_back()) == []


def test_a_device_asks_the_nearest_device_of_each_site_at_work() -> None:
    absent = run("ab bc")
    working = ["a/0/0", "a/0/1", "b/0/2", "b/0/3", "a/1/0", "a/1/1"]
    assert sorted(absent.asked("c/0/4", working)) == ["a/0/1", "b/0/3"]
    assert absent.asked("c/1/4", working) == ["a/1/1"]

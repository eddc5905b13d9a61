"""How often a gang is expected to fail, by what its store has seen."""

from __future__ import annotations

import pytest

from unidle.events import types as ev
from unidle.guard.mttf import rates_of
from unidle.jobs import Reason, Restart
from view.telling import Telling

DAY_S = 86_400.0


def test_a_gang_of_which_nothing_is_known_fails_once_a_day() -> None:
    told = Telling(2).submit("j")
    assert rates_of(told.view, told.job("j")) == (DAY_S, 60.0)


def test_failures_of_other_jobs_count_per_device_and_second() -> None:
    told = Telling(4).submit("old", ranks=2)
    for k in range(9):
        told.place("old", "n0/0", "n0/1").at((k + 1) * 1000).end("old", 1, "failed").retry("old")
    told.submit("wide", ranks=4).submit("one")
    wide, one = (rates_of(told.view, told.job(job)) for job in ("wide", "one"))
    assert wide.mttf_s == pytest.approx((18_000 / 4 + DAY_S) / 10)
    assert one.mttf_s == pytest.approx((18_000 + DAY_S) / 10)


def test_a_command_that_does_not_exist_says_nothing_of_the_fleet() -> None:
    told = Telling(2).submit("j").place("j", "n0/0")
    told.at(10).tell(ev.AttemptEnded("j", 1, "failed", Reason("rank_failed", "no such file", {"code": 127})))
    assert rates_of(told.view, told.job("j")).mttf_s > DAY_S


def test_the_time_of_a_restart_is_that_of_this_jobs_restarts() -> None:
    told = Telling(2).submit("j", restart=Restart(9)).place("j", "n0/0").steps("j", 1, 3)
    told.end("j", 1, "failed").retry("j").place("j", "n0/0").at(told.at_s + 12).mark("j", 0, "step", n=1)
    assert rates_of(told.view, told.job("j")).restart_s == pytest.approx(12)

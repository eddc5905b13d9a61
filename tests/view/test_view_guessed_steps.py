"""Steps read from lines that nobody named: work while they come, no standstill when they stop."""

from __future__ import annotations

import pytest

from unidle.control.gangs.progress_watch import progress_of
from unidle.events import types as ev
from unidle.view.idle_holders import holder_of
from view.telling import Telling


def printed(observer: str) -> Telling:
    told = Telling(1).submit("j").place("j", "n0/0").at(1)
    for n in range(1, 5):
        told.at(n).mark("j", 0, "step", n=n, o=observer)
    return told.at(50).tell(ev.UtilisationSeen("j", 1, "unknown", 1))


@pytest.mark.parametrize(("observer", "counts"), [("lines", False), ("keras", True), ("pattern", True)])
def test_that_guessed_steps_stop_is_no_sign_of_a_hang(observer: str, counts: bool) -> None:
    attempt = printed(observer).job("j").attempts[0]
    assert bool(progress_of(attempt).steps_ns) is counts
    assert attempt.last_step() == 4


@pytest.mark.parametrize(("observer", "evidence"), [("lines", "none"), ("keras", "steps")])
def test_that_guessed_steps_stop_is_no_evidence_against_an_idle_holder(observer: str, evidence: str) -> None:
    told = printed(observer)
    job = told.job("j")
    holder = holder_of(told.view, job, job.attempts[0], told.view.time_ns)
    assert holder is not None and holder.evidence == evidence


def test_guessed_steps_are_useful_time() -> None:
    assert printed("lines").ledger("n0/0")[-1] == (0, 50, "useful")

"""How well the clocks of hosts are known: at the start of an attempt, while it runs, after its end, and what follows from it."""

from __future__ import annotations

import pytest

from sim.worlds import S
from unidle.control.host_reports import event_of
from unidle.control.queries.describe import clock_text, explain, job_detail
from unidle.control.queries.explanation import story_lines
from unidle.engine.protocol import HostClock
from unidle.events import types as ev
from unidle.guard.failure import failure_of
from unidle.guard.failure_words import others_in_words
from unidle.view.host_clocks import clock_errors, node_errors
from unidle.view.snapshot import decode, encode
from view.telling import Telling

MS = 1_000_000


def clock(node: str, error_ms: float, *, offset_ms: float = 0, boot: str = "b") -> ev.ClockMeasured:
    return ev.ClockMeasured(node, boot, int(offset_ms * MS), int(error_ms * MS))


def errors(told: Telling, job: str = "j") -> dict[str, float]:
    return {node: ns / MS for node, ns in clock_errors(told.view, told.job(job).attempts[-1]).items()}


def running() -> Telling:
    """A gang on two hosts whose clocks are known within 0.4 and 12 ms."""
    told = Telling(1, 1).tell(clock("n0", 0.4)).tell(clock("n1", 12))
    return told.submit("j").place("j", "n0/0", "n1/0")


def test_an_attempt_has_the_errors_of_its_hosts_clocks() -> None:
    told = running()
    assert errors(told) == {"n0": 0.4, "n1": 12}
    words = "clocks of hosts known within 12 ms (n1), 400 us (n0)"
    assert f"  {words}" in story_lines(explain(told.view, told.job("j")))
    [run] = job_detail(told.view, told.job("j"))["runs"]
    assert clock_text(run["clock_errors_ns"]) == words
    kept = decode(encode(told.view))
    assert kept is not None
    assert kept.clocks == told.view.clocks
    assert clock_errors(kept, kept.jobs["j"].attempts[-1]) == clock_errors(
        told.view, told.job("j").attempts[-1]
    )


def test_what_a_clock_drifts_while_an_attempt_runs_adds_to_its_error_and_stays_after_its_end() -> None:
    told = running().at(3600).tell(clock("n0", 0.3, offset_ms=50))
    assert errors(told) == {"n0": 50.3, "n1": 12}
    told.at(3700).end("j", 0, "succeeded").done("j", "succeeded")
    told.at(3800).tell(clock("n0", 0.2, offset_ms=500))
    assert errors(told) == {"n0": 50.3, "n1": 12}
    assert {node: ns / MS for node, ns in node_errors(told.view).items()} == {"n0": 50.3, "n1": 12}
    told.submit("k").place("k", "n0/0")
    assert errors(told, "k") == {"n0": 0.2}


def test_a_better_measurement_does_not_make_the_times_of_ranks_that_run_better() -> None:
    assert errors(running().tell(clock("n1", 0.5, offset_ms=1))) == {"n0": 0.4, "n1": 12}


def test_the_clock_of_another_boot_shows_nothing_about_an_attempt_of_the_last_one() -> None:
    told = running().tell(clock("n1", 1, offset_ms=1e9, boot="c"))
    assert errors(told)["n1"] == 12


def test_a_clock_that_is_first_measured_after_the_start_counts_and_no_clock_is_no_error() -> None:
    told = Telling(1, 1).submit("j").place("j", "n0/0", "n1/0")
    assert errors(told) == {}
    assert clock_text({}) == ""
    told.tell(clock("n1", 3))
    assert errors(told) == {"n1": 3}
    assert clock_text(clock_errors(told.view, told.job("j").attempts[-1])) == "clock of n1 known within 3 ms"


def test_a_node_that_left_keeps_its_error_for_the_rows_that_the_ledger_has_of_it() -> None:
    told = running().at(5).end("j", 0, "succeeded").done("j", "succeeded")
    told.tell(ev.FleetChanged(gone=("n1",)))
    assert errors(told)["n1"] == 12
    assert node_errors(told.view)["n1"] == 12 * MS


def test_many_hosts_are_counted() -> None:
    text = clock_text({f"n{k}": k * MS for k in range(1, 9)})
    assert text == "clocks of hosts known within 8 ms (n8), 7 ms (n7), 6 ms (n6), and better on 5 more hosts"


@pytest.mark.parametrize(
    ("offset_ms", "error_ms", "boot", "news"),
    [
        (0, 12, "b", False),
        (20, 9, "b", False),  # both can be true
        (22, 9, "b", True),  # they cannot
        (0, 5, "b", True),
        (0, 25, "b", True),
        (0, 7, "b", False),
        (0, 12, "c", True),
    ],
)
def test_a_measurement_is_logged_where_it_says_something_new(
    offset_ms: float, error_ms: float, boot: str, news: bool
) -> None:
    seen = HostClock("n1", boot, int(offset_ms * MS), int(error_ms * MS))
    assert (event_of(running().view, seen) is not None) == news


def test_small_errors_are_all_alike_and_unknown_nodes_have_no_clock() -> None:
    view = running().view
    assert event_of(view, HostClock("n0", "b", 0, MS // 10)) is None
    assert event_of(view, HostClock("n9", "b", 0, MS)) is None


@pytest.mark.parametrize(("apart_ms", "unsure"), [(12.0, (1,)), (12.5, ())])
def test_of_two_ranks_on_hosts_it_is_not_said_which_failed_first_where_the_clocks_leave_it_open(
    apart_ms: float, unsure: tuple[int, ...]
) -> None:
    told = running().at(10).mark("j", 0, "exit", code=-11)
    told.at(10 + apart_ms / 1e3).mark("j", 1, "exit", code=-11)
    told.tell(ev.AttemptEnded("j", 1, "failed", ev.Reason("rank_failed", "rank 0", {"rank": 0})))
    failure = failure_of(told.job("j"), told.job("j").attempts[-1])
    assert failure is not None
    assert (failure.rank, failure.unsure) == (0, unsure)
    assert failure.because_of == (() if unsure else (1,))
    said = others_in_words(failure.because_of, failure.same, failure.unsure)
    open_words = "rank 1 may have failed first: the hosts' clocks are known no better"
    assert said == (open_words if unsure else "rank 1 failed because of it")
    assert told.view.time_ns > 10 * S

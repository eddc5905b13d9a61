"""What looks at running ranks say becomes rows of the ledger, whoever folds the log and how often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.worlds import S
from unidle.events import types as ev
from unidle.ledger.columns import HOWS, LEAVES, from_entries
from unidle.ledger.current import check, net
from unidle.ledger.tables import SliceInfo
from unidle.view import profiler_events
from unidle.view.accounts import entries, post_ended
from unidle.view.snapshot import decode, encode
from view.telling import Telling


def told() -> Telling:
    """Job j of one rank, which does a step a second from its second 0 on."""
    return Telling(1).submit("j").place("j", "n0/0").mark("j", 0, "ready").steps("j", 1, 100)


def looked(told: Telling, start_s: float, end_s: float, **seconds: float) -> Telling:
    parts = {leaf: int(s * S) for leaf, s in seconds.items()}
    return told.tell(ev.BudgetMeasured("j", 1, 1 + int(start_s * S), 1 + int(end_s * S), {0: parts}))


def sums(told: Telling) -> dict[tuple[str, str, str], int]:
    """Nanoseconds by leaf, how and observer, of all slices."""
    view, now = told.view, told.view.time_ns
    infos = [SliceInfo(r.id, r.device, r.node, r.share_ppm, r.first_ns, now) for r in view.book.slices]
    columns = from_entries(entries(view, now), infos, ())
    assert check(columns) == []
    found: dict[tuple[str, str, str], int] = {}
    rows = net(columns)
    for k in range(len(rows)):
        key = LEAVES[rows["leaf"][k]], HOWS[rows["how"][k]], rows.observers[rows["observer"][k]]
        found[key] = found.get(key, 0) + int(rows["end_ns"][k] - rows["start_ns"][k])
    return found


def test_a_measured_budget_is_rows_of_the_ledger_with_its_observer() -> None:
    found = sums(looked(told(), 10, 20, data_stall=4, exposed_local=1))
    assert found[("data_stall", "measured", "scope")] == 4 * S
    assert found[("exposed_local", "measured", "scope")] == 1 * S
    assert found[("useful", "inferred", "output")] == 95 * S


def test_between_two_looks_it_is_inferred() -> None:
    found = sums(looked(looked(told(), 10, 12, data_stall=1), 40, 42, data_stall=1))
    assert found[("data_stall", "measured", "scope")] == 2 * S
    assert found[("data_stall", "inferred", "scope")] == 14 * S


def test_a_look_that_is_told_twice_or_overlaps_another_counts_once() -> None:
    once = sums(looked(told(), 10, 20, data_stall=4))
    twice = looked(looked(looked(told(), 10, 20, data_stall=4), 10, 20, data_stall=4), 15, 25, data_stall=9)
    assert sums(twice) == once


def test_more_than_the_window_holds_is_made_to_fit() -> None:
    found = sums(looked(told(), 10, 20, data_stall=90, straggler_wait=10, nonsense=5))
    assert (found[("data_stall", "measured", "scope")], found[("straggler_wait", "measured", "scope")]) == (
        9 * S,
        S,
    )


def test_looks_at_what_the_log_does_not_know_change_nothing() -> None:
    before = sums(told())
    view = told()
    for job, attempt, rank in (("gone", 1, 0), ("j", 7, 0), ("j", 0, 0), ("j", 1, 9), ("j", 1, -1)):
        view.tell(ev.BudgetMeasured(job, attempt, 1, 100 * S, {rank: {"data_stall": S}}))
        view.tell(ev.StepsWatched(job, attempt, 1, 100 * S, {rank: (5,)}))
    assert sums(view) == before


def test_what_was_found_stays_in_the_books_when_the_job_has_ended() -> None:
    view = looked(told(), 10, 20, data_stall=4).end("j", 0, "succeeded").done("j", "succeeded")
    before = sums(view)
    assert before[("data_stall", "measured", "scope")] == 4 * S
    post_ended(view.view)
    assert sums(view) == before
    looked(view, 30, 40, data_stall=4)  # too late
    assert sums(view) == before


def test_a_snapshot_keeps_looks_and_watched_steps() -> None:
    view = looked(told(), 10, 20, data_stall=4)
    view.tell(ev.StepsWatched("j", 1, S, 3 * S, {0: (2 * S,)})).tell(ev.ProfilerSet("it ended"))
    kept = decode(encode(view.view))
    assert kept is not None and kept.profiler == "it ended"
    rank = kept.jobs["j"].attempts[0].ranks[0]
    assert rank.looks == view.job("j").attempts[0].ranks[0].looks and rank.watched_ns == 2 * S


def test_many_looks_are_kept_coarser_with_the_same_shares(monkeypatch) -> None:
    monkeypatch.setattr(profiler_events, "LOOKS_KEPT", 8)
    view = told()
    for k in range(16):
        looked(view, 5 * k, 5 * k + 1, data_stall=0.5)
    assert len(view.job("j").attempts[0].ranks[0].looks) <= 8
    found = sums(view)
    assert sum(s for key, s in found.items() if key[0] == "data_stall") == 38 * S


def test_a_job_that_shows_no_step_works_from_the_first_step_seen_from_outside() -> None:
    view = Telling(1).submit("j").place("j", "n0/0").at(50)
    view.tell(ev.StepsWatched("j", 1, 20 * S, 22 * S, {0: (20 * S + 1, 21 * S)}))
    assert view.ledger("n0/0") == [(0, 20, "start"), (20, 50, "useful")]
    assert view.job("j").attempts[0].ranks[0].worked_ns == 21 * S


windows = st.lists(st.tuples(st.integers(0, 95), st.integers(1, 9), st.integers(0, 12)), max_size=8)


@given(windows, st.integers(0, 8))
def test_every_moment_has_one_cause_whatever_looks_say_and_over_snapshots(found, cut) -> None:
    view = told()
    for k, (start_s, length_s, stall_s) in enumerate(found):
        if k == cut:
            kept = decode(encode(view.view))
            assert kept is not None
            view.view = kept
        looked(view, start_s, start_s + length_s, data_stall=stall_s)
    whole = told()
    for start_s, length_s, stall_s in found:
        looked(whole, start_s, start_s + length_s, data_stall=stall_s)
    assert sums(view) == sums(whole)
    assert sum(sums(view).values()) == 100 * S

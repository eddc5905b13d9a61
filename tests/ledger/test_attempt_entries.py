"""From what was seen of an attempt to its postings: what stands, what was revoked, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.ledger.attempt import START_MOST_NS, AttemptTrace, RankTrace, attempt_entries
from unidle.ledger.profiled_causes import Look, fitted
from unidle.ledger.rows import Entry
from unidle.ledger.taxonomy import GROUP_OF

STEPS = RankTrace((0,), 10, None, 20, (30, 40, 50, 60), (1, 2, 3, 4), observer="helper")


def trace(*ranks: RankTrace, **more: object) -> AttemptTrace:
    return AttemptTrace("j", 1, 0, ranks=ranks, **{"ended_ns": 100, "fate": "kept", **more})  # type: ignore[arg-type]


def standing(entries: list[Entry]) -> list[tuple[int, int, str, int]]:
    """What is left after every reversal, in order of time, for a gang of one slice."""
    left: list[Entry] = []
    for entry in entries:
        if entry.sign > 0:
            left.append(entry)
        else:
            left.remove(entry._replace(sign=1, revision=entry.revision - 1))
    return sorted((e.start_ns, e.end_ns, e.leaf, e.step) for e in left)


def test_a_kept_attempt_is_start_steps_and_a_tail():
    rank = STEPS._replace(end_ns=90)
    assert standing(attempt_entries(trace(rank), 100)) == [
        (0, 10, "gang_wait", -1),
        (10, 20, "start", -1),
        (20, 30, "useful", 1),
        (30, 40, "useful", 2),
        (40, 50, "useful", 3),
        (50, 60, "useful", 4),
        (60, 90, "idle", -1),
        (90, 100, "idle", -1),
    ]


@pytest.mark.parametrize("fate", ["preempted", "no_artefact"])
def test_what_is_known_to_be_idle_is_no_lost_work(fate):
    rank = STEPS._replace(end_ns=95, spans=((62, 65, "data_stall"),))
    made = trace(rank, fate=fate, durable_step=2, durable_ns=40, halted_ns=90, halt="request", idle_ns=60)
    rows = standing(attempt_entries(made._replace(idle_how="measured"), 100))
    assert [(a, b, leaf) for a, b, leaf, _ in rows if a >= 40] == [
        (40, 50, fate), (50, 60, fate), (60, 62, "idle"), (62, 65, fate), (65, 90, "idle"),
        (90, 95, "preempting"), (95, 100, "idle"),
    ]  # fmt: skip


def test_a_job_that_never_showed_a_step_and_sleeps_is_idle_since_that_is_known():
    rank = RankTrace((0,), 10, None)
    entries = attempt_entries(trace(rank, fate="open", job_steps=False, idle_ns=30, idle_how="measured"), 100)
    assert standing(entries) == [(0, 10, "gang_wait", -1), (10, 30, "start", -1), (30, 100, "idle", -1)]
    assert {e.how for e in entries if e.leaf == "idle"} == {"measured"}


@pytest.mark.parametrize("fate", ["replayed", "preempted", "no_artefact"])
def test_work_after_the_last_durable_checkpoint_is_revoked_by_a_reversing_pair(fate):
    rank = STEPS._replace(end_ns=70)
    entries = attempt_entries(trace(rank, fate=fate, durable_step=2, durable_ns=40, halted_ns=70), 100)
    rows = standing(entries)
    assert [(a, b, leaf) for a, b, leaf, _ in rows if leaf == "useful"] == [
        (20, 30, "useful"),
        (30, 40, "useful"),
    ]
    assert [(a, b) for a, b, leaf, _ in rows if leaf == fate] == [(40, 50), (50, 60), (60, 70)]
    reversed_ = [e for e in entries if e.sign < 0]
    assert len(reversed_) == 3 and {e.revision for e in reversed_} == {1}
    assert all(e._replace(sign=1, revision=0) in entries for e in reversed_)


def test_a_checkpoint_between_two_steps_keeps_the_part_before_it():
    rank = STEPS._replace(end_ns=70)
    rows = standing(attempt_entries(trace(rank, fate="replayed", durable_ns=45, halted_ns=70), 100))
    assert (40, 45, "useful", 3) in rows and (45, 50, "replayed", 3) in rows


def test_survivors_of_a_failure_hang_until_they_are_gone():
    dead, alive = STEPS._replace(end_ns=70), RankTrace((1,), 10, 85)
    entries = attempt_entries(trace(dead, alive, fate="replayed", halted_ns=70), 100)
    of = {
        k: [(e.start_ns, e.end_ns, e.leaf) for e in entries if k in e.slices and e.sign > 0] for k in (0, 1)
    }
    assert (70, 85, "hang") in of[1] and (85, 100, "idle") in of[1]
    assert (70, 100, "idle") in of[0]


def test_ranks_that_report_no_steps_follow_the_one_that_does():
    entries = attempt_entries(trace(STEPS._replace(end_ns=90), RankTrace((1, 2), 12, 90)), 100)
    steps = [e for e in entries if e.leaf == "useful"]
    assert [e.slices for e in steps] == [(0, 1, 2)] * 4


def test_a_job_of_which_no_step_was_seen_is_unmeasured_and_of_a_simulation_it_has_worked():
    ended = trace(RankTrace((0,), 10, 90), job_steps=False)
    assert (10, 90, "unmeasured", -1) in standing(attempt_entries(ended, 100))
    assert (10, 90, "useful", -1) in standing(attempt_entries(ended._replace(modelled=True), 100))


def test_a_job_of_which_no_step_was_seen_yet_starts_and_after_a_while_is_unmeasured():
    live = trace(RankTrace((0,), 10, None), fate="open", job_steps=False, ended_ns=None)
    assert standing(attempt_entries(live, 100))[-1] == (10, 100, "start", -1)
    later = START_MOST_NS + 1000
    assert standing(attempt_entries(live, later))[-2:] == [
        (10, 10 + START_MOST_NS, "start", -1),
        (10 + START_MOST_NS, later, "unmeasured", -1),
    ]


def test_what_looks_find_is_carved_out_of_unmeasured_time_too():
    rank = RankTrace((0,), 10, 90, looks=(Look(20, 40, fitted({"data_stall": 5}, 20)),))
    found = attempt_entries(trace(rank, job_steps=False), 100)
    assert [(a, b) for a, b, leaf, _ in standing(found) if leaf == "data_stall"] == [(35, 40)]


FAILED = {"failed": True, "halted_ns": 70, "ended_ns": 100}


@pytest.mark.parametrize("job_steps", [True, False])
@pytest.mark.parametrize("fate", ["replayed", "no_artefact"])
def test_a_gang_that_fails_before_its_first_step_has_a_failed_start_until_its_last_rank_is_gone(
    fate, job_steps
):
    dead = RankTrace((0,), 10, 70, spans=((20, 30, "restore"), (50, 70, "hang")))
    made = trace(dead, RankTrace((1,), 12, 90), fate=fate, job_steps=job_steps, **FAILED)
    entries = attempt_entries(made, 100)
    for number, end in ((0, 70), (1, 90)):
        rows = standing([e._replace(slices=(number,)) for e in entries if number in e.slices])
        assert rows[0] == (0, 12, "gang_wait", -1)
        assert {leaf for a, b, leaf, _ in rows if a >= 12 and b <= end} == {"failed_start"}
        assert [(a, b, leaf) for a, b, leaf, _ in rows if a >= end] == [(end, 100, "idle")]


def test_faults_under_a_failed_start_stay_faults():
    rank = RankTrace((0,), 10, 70, down=((40, 80, "fault"),))
    rows = standing(attempt_entries(trace(rank, fate="replayed", **FAILED), 100))
    assert [(a, b, leaf) for a, b, leaf, _ in rows] == [
        (0, 10, "gang_wait"), (10, 40, "failed_start"), (40, 70, "fault"), (70, 80, "fault"), (80, 100, "idle"),
    ]  # fmt: skip


@pytest.mark.parametrize("fate", ["preempted", "no_artefact"])
def test_a_start_that_was_interrupted_on_request_did_not_fail(fate):
    rank = RankTrace((0,), 10, 90)
    rows = standing(attempt_entries(trace(rank, fate=fate, halted_ns=70, halt="request"), 100))
    assert [(a, b, leaf) for a, b, leaf, _ in rows] == [
        (0, 10, "gang_wait"), (10, 70, "start"), (70, 90, "preempting"), (90, 100, "idle"),
    ]  # fmt: skip


@pytest.mark.parametrize("fate", ["preempted", "no_artefact"])
def test_a_job_without_steps_that_was_asked_to_end_is_unmeasured(fate):
    rank = RankTrace((0,), 10, 90)
    rows = standing(
        attempt_entries(trace(rank, fate=fate, halted_ns=70, halt="request", job_steps=False), 100)
    )
    assert [(a, b, leaf) for a, b, leaf, _ in rows] == [
        (0, 10, "gang_wait"), (10, 70, "unmeasured"), (70, 90, "preempting"), (90, 100, "idle"),
    ]  # fmt: skip


def test_what_a_job_without_steps_had_saved_is_not_lost_with_its_failure():
    rank = RankTrace((0,), 10, 70)
    made = trace(rank, fate="no_artefact", job_steps=False, saved=True, durable_ns=40, **FAILED)
    assert [(a, b, leaf) for a, b, leaf, _ in standing(attempt_entries(made, 100))][1:3] == [
        (10, 40, "unmeasured"), (40, 70, "no_artefact"),
    ]  # fmt: skip


@pytest.mark.parametrize("more", [{"saved": True}, {"modelled": True}, {"watched_ns": 40}])
def test_a_job_without_steps_that_was_at_work_did_not_fail_at_its_start(more):
    rank = RankTrace((0,), 10, 70)
    entries = attempt_entries(trace(rank, fate="no_artefact", job_steps=False, **FAILED, **more), 100)
    assert "failed_start" not in {leaf for _, _, leaf, _ in standing(entries)}


def test_a_job_without_steps_that_fails_after_long_is_no_failed_start():
    end = START_MOST_NS + 1000
    rank = RankTrace((0,), 10, end)
    made = trace(rank, fate="no_artefact", job_steps=False, failed=True, halted_ns=end, ended_ns=end)
    assert standing(attempt_entries(made, end))[-1] == (10, end, "no_artefact", -1)


def test_measured_waits_lie_over_the_steps_and_faults_over_all():
    rank = STEPS._replace(end_ns=90, spans=((32, 36, "data_stall"),), down=((55, 95, "fault"),))
    rows = standing(attempt_entries(trace(rank), 100))
    assert (
        (30, 32, "useful", 2) in rows and (32, 36, "data_stall", 2) in rows and (36, 40, "useful", 2) in rows
    )
    assert [(a, b) for a, b, leaf, _ in rows if leaf == "fault"] == [(55, 60), (60, 90), (90, 95)]


def test_an_attempt_whose_gang_never_came_up_only_waited():
    rows = standing(attempt_entries(trace(RankTrace((0,), 10, 50), fate="replayed", halted_ns=50), 100))
    assert rows[0] == (0, 10, "gang_wait", -1)
    never = standing(attempt_entries(trace(RankTrace((0,), None, 50), fate="replayed", halted_ns=50), 100))
    assert never == [(0, 50, "gang_wait", -1), (50, 100, "idle", -1)]


times = st.integers(0, 120)


parts = st.dictionaries(st.sampled_from(["data_stall", "exposed_local", "straggler_wait"]), times, max_size=3)


@st.composite
def looks(draw: st.DrawFn) -> tuple[Look, ...]:
    edges = sorted(set(draw(st.lists(times, max_size=6))))
    pairs = zip(edges[::2], edges[1::2], strict=False)
    return tuple(Look(a, b, fitted(draw(parts), b - a)) for a, b in pairs)


@st.composite
def traces(draw: st.DrawFn) -> AttemptTrace:
    ranks = []
    for k in range(draw(st.integers(1, 3))):
        step_ns = sorted(draw(st.lists(times, max_size=6)))
        span = st.tuples(times, times, st.sampled_from(["data_stall", "checkpoint"])).map(
            lambda s: (min(s[:2]), max(s[:2]), s[2])
        )
        ranks.append(
            RankTrace(
                (k,), draw(st.none() | times), draw(st.none() | times), draw(st.none() | times), step_ns,
                range(1, len(step_ns) + 1), sorted(draw(st.lists(span, max_size=3))), "helper", (),
                draw(looks()),
            )
        )  # fmt: skip
    fate = draw(st.sampled_from(["open", "kept", "replayed", "preempted", "no_artefact"]))
    return AttemptTrace(
        "j", 1, 0, None if fate == "open" else 100, tuple(ranks), fate, None, None, draw(st.none() | times),
        draw(st.none() | times), draw(st.sampled_from(["failure", "request"])), draw(st.booleans()),
        draw(st.none() | times), draw(st.sampled_from(["measured", "inferred"])), None, draw(st.none() | times),
        fate not in ("open", "kept") and draw(st.booleans()), draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip


@given(traces())
def test_whatever_was_seen_the_time_is_tiled_and_postings_balance(made: AttemptTrace):
    entries = attempt_entries(made, 100)
    for k in range(len(made.ranks)):
        mine = [e._replace(slices=(k,)) for e in entries if k in e.slices]
        rows = standing(mine)
        assert [a for a, *_ in rows] == [0, *(b for _, b, *_ in rows[:-1])] and rows[-1][1] == 100
        assert sum(e.sign * (e.end_ns - e.start_ns) for e in mine) == 100
        assert all(leaf in GROUP_OF for _, _, leaf, _ in rows)


def test_the_first_step_of_a_job_that_counts_below_its_checkpoint_began_one_step_before() -> None:
    rank = STEPS._replace(ready_ns=None, end_ns=60)
    rows = standing(attempt_entries(trace(rank, base_step=4), 100))
    assert rows[:3] == [(0, 10, "gang_wait", -1), (10, 20, "start", -1), (20, 30, "useful", 1)]


def test_work_that_was_seen_from_outside_is_lost_from_when_it_was_seen() -> None:
    rank = RankTrace((0,), 10, None)
    made = trace(rank, fate="no_artefact", job_steps=True, watched_ns=50)
    assert standing(attempt_entries(made, 100)) == [
        (0, 10, "gang_wait", -1),
        (10, 50, "start", -1),
        (50, 100, "no_artefact", -1),
    ]

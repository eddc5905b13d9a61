"""Nothing twice, nothing lost, no storms."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from notices.made import S, notice
from unidle.notices.dedup import BURST, PERIOD_NS, SUBJECTS_NAMED, Deduplicator, summary
from unidle.notices.model import Notice

WINDOW_NS = 600 * S


def run(notices: list[Notice], until_s: float) -> list[Notice]:
    """All that is told, with a look in every second as the controller would."""
    dedup, found = Deduplicator(WINDOW_NS), list[Notice]()
    now_ns = 0
    for one in notices:
        while (due_ns := dedup.next_ns()) is not None and due_ns <= one.time_ns:
            now_ns = max(now_ns, due_ns)
            found += dedup.due(now_ns)
        found += dedup.add(one)
    while (due_ns := dedup.next_ns()) is not None and due_ns <= until_s * S:
        found += dedup.due(due_ns)
    assert not dedup.storm
    assert all(key.held is None for key in dedup.keys.values())
    return found


def test_a_change_and_the_way_back_are_told_at_once() -> None:
    found = run([notice(1, state="fault"), notice(2, state="healthy", at_s=5)], 9999)
    assert [(one.state, one.count) for one in found] == [("fault", 1), ("healthy", 1)]


def test_the_same_again_within_the_window_is_not_told() -> None:
    found = run([notice(1), notice(2, at_s=5), notice(3, at_s=599)], 9999)
    assert [one.seq for one in found] == [1]


def test_the_same_again_after_the_window_is_told() -> None:
    found = run([notice(1), notice(2, at_s=601)], 9999)
    assert [one.seq for one in found] == [1, 2]


def test_who_flaps_is_told_how_it_is_at_the_end_of_the_window() -> None:
    states = ["fault", "healthy"] * 3 + ["fault"]
    found = run([notice(k, state=state, at_s=k) for k, state in enumerate(states)], 9999)
    assert [(one.state, one.count, one.seq) for one in found] == [
        ("fault", 1, 0),
        ("healthy", 1, 1),
        ("fault", 5, 6),
    ]


def test_two_attempts_are_two_incidents() -> None:
    found = run([notice(k, "job:j", "hang", k, kind="verdict", attempt=k) for k in (1, 2)], 9999)
    assert len(found) == 2


def test_a_storm_becomes_a_summary() -> None:
    found = run([notice(k, f"node:n{k}", at_s=k / 1000) for k in range(1000)], 9999)
    assert len(found) == BURST + 1
    last = found[-1]
    assert (last.kind, last.count, last.counts, last.severity) == (
        "summary",
        980,
        {"node fault": 980},
        "critical",
    )
    assert len(last.subjects) == SUBJECTS_NAMED
    assert last.text == "980 changes (many changes at once): 980 node fault"


def test_a_long_storm_is_one_summary_a_minute() -> None:
    found = run([notice(k, f"node:n{k}", at_s=k / 10) for k in range(6000)], 9999)
    assert len(found) <= BURST + 12
    assert sum(one.count for one in found) == 6000


def test_after_a_storm_notices_come_one_by_one_again() -> None:
    storm = [notice(k, f"node:n{k}", at_s=k / 1000) for k in range(1000)]
    found = run([*storm, notice(2000, "node:x", at_s=500)], 9999)
    assert found[-1].seq == 2000
    assert found[-1].kind == "node"


def test_a_storm_of_any_size_is_remembered_in_bounded_space() -> None:
    dedup = Deduplicator(WINDOW_NS)
    found = [one for k in range(20_000) for one in dedup.add(notice(k, f"node:n{k}", at_s=k / 1e6))]
    assert len(msgspec.json.encode(dedup)) < 1_000_000
    found += dedup.due(61 * S)
    assert sum(one.count for one in found) == 20_000


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["fault", "repair", "healthy"]), st.integers(40, 900)),
    max_size=40,
)


@given(CHANGES)
def test_what_was_told_last_is_how_it_is(changes: list[tuple[str, str, int]]) -> None:
    """Sparse changes, so that no storm is summed up."""
    at_s, events, truth = 0, list[Notice](), dict[str, str]()
    for n, (subject, state, gap_s) in enumerate(changes):
        at_s += gap_s
        if truth.get(subject) != state:
            truth[subject] = state
            events.append(notice(n, subject, state, at_s))
    found = run(events, at_s + 10_000)
    assert not any(one.kind == "summary" for one in found)
    assert {one.subject: one.state for one in found} == truth


@settings(max_examples=50)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=300))
def test_of_different_subjects_every_one_is_counted_once_and_no_minute_has_more_than_its_share(
    gaps_s: list[int],
) -> None:
    at_s, events = 0, list[Notice]()
    for n, gap_s in enumerate(gaps_s):
        at_s += gap_s
        events.append(notice(n, f"n{n}", "fault", at_s))
    found = run(events, at_s + 10_000)
    assert sum(one.count for one in found) == len(events)
    single = [one.time_ns for one in found if one.kind != "summary"]
    for begin_ns in single:
        assert sum(begin_ns <= at_ns < begin_ns + PERIOD_NS for at_ns in single) <= 2 * BURST + 1
    assert len({one.id for one in found}) == len(found)


@given(CHANGES, st.integers(0, 40))
def test_a_temper_goes_on_where_it_was_kept(changes: list[tuple[str, str, int]], cut: int) -> None:
    at_s, events = 0, list[Notice]()
    for n, (subject, state, gap_s) in enumerate(changes):
        at_s += gap_s // 40
        events.append(notice(n, subject, state, at_s))
    dedup, other = Deduplicator(WINDOW_NS), Deduplicator(WINDOW_NS)
    for n, one in enumerate(events):
        if n == cut:
            other = msgspec.json.decode(msgspec.json.encode(other), type=Deduplicator)
        assert dedup.add(one) == other.add(one)
    end_ns = (at_s + 5000) * S
    assert list(dedup.due(end_ns)) == list(other.due(end_ns))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9), st.integers(1, 8))
def test_summaries_of_summaries_count_the_same(counts: list[int], cut: int) -> None:
    events = [notice(n, f"n{n}", count=count) for n, count in enumerate(counts)]
    cut = min(cut, len(events) - 1)
    whole = summary(events, "x")
    parts = summary([summary(events[:cut], "x"), summary(events[cut:], "x")], "x")
    assert (parts.count, parts.counts, parts.subjects) == (whole.count, whole.counts, whole.subjects)

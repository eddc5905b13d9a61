"""The tree of queues: what each deserves, by weight, guarantee, limit and time; and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from place.queues import BOTH, tree, trees
from unidle.errors import BadInput
from unidle.fleet.queues import UTC, QueueSpec, TimeWindow, Zone, minute_of_week, next_edge_ns, weekly
from unidle.ledger.apportion import fill
from unidle.place.queue.tree import ROOT, QueueTree

MINUTE = 60_000_000_000
MONDAY = 4 * 1440 * MINUTE  # the first Monday after the epoch
BERLIN = Zone("Europe/Berlin", ((0, 3600), (1_774_746_000_000_000_000, 7200)))


def deserved(made: QueueTree, gpus: int, now_ns: int = 0) -> dict[str, int]:
    quota = made.quota((gpus * 1000,), now_ns)
    return {made.name(k): quota.deserved[k][0] // 1000 for k in range(1, len(made))}


def test_a_queue_deserves_its_part_by_weight_of_what_its_parent_deserves():
    made = tree(
        QueueSpec("a", weight=3), QueueSpec("b"), QueueSpec("a1", "a"), QueueSpec("a2", "a", weight=2)
    )
    assert deserved(made, 16) == {"a": 12, "b": 4, "a1": 4, "a2": 8}


def test_given_shares_come_first_and_the_rest_goes_by_weight():
    made = tree(QueueSpec("a", deserved={"gpu": 10}), QueueSpec("b"), QueueSpec("c", weight=2))
    assert deserved(made, 16) == {"a": 10, "b": 2, "c": 4}


def test_nobody_deserves_less_than_its_guarantee_or_more_than_its_limit():
    made = tree(QueueSpec("a", guarantee={"gpu": 10}), QueueSpec("b", limit={"gpu": 1}), QueueSpec("c"))
    assert deserved(made, 16) == {"a": 10, "b": 1, "c": 5}


def test_when_nodes_are_down_guarantees_come_before_given_shares():
    made = tree(
        QueueSpec("a", guarantee={"gpu": 4}, deserved={"gpu": 12}),
        QueueSpec("b", deserved={"gpu": 4}),
        QueueSpec("c"),
    )
    assert deserved(made, 20) == {"a": 12, "b": 4, "c": 4}
    assert deserved(made, 10) == {"a": 8, "b": 2, "c": 0}
    assert deserved(made, 3) == {"a": 3, "b": 0, "c": 0}


def test_a_public_queue_deserves_nothing_unless_given():
    made = tree(QueueSpec("a"), QueueSpec("p", kind="public"))
    assert deserved(made, 8) == {"a": 8, "p": 0}


def test_children_come_after_parents_in_any_order_of_declaration():
    made = tree(QueueSpec("leaf", "mid"), QueueSpec("mid", "top"), QueueSpec("top"))
    assert [spec.name for spec in made.specs] == ["top", "mid", "leaf"]
    assert [made.name(k) for k in made.path(made.leaf("leaf"))] == ["leaf", "mid", "top", ""]


@given(trees(), st.lists(st.integers(0, 200), min_size=2, max_size=2))
def test_deserved_shares_are_integers_that_sum_to_the_capacity(made: QueueTree, capacity: list[int]):
    quota = made.quota((capacity[0] * 1000, capacity[1] * 1000), 0)
    for queue in range(len(made)):
        below = made.children[queue]
        weighted = [k for k in below if made.specs[k - 1].kind != "public"]
        for r in range(len(BOTH)):
            parts = [quota.deserved[k][r] for k in below]
            assert all(isinstance(part, int) and part >= 0 for part in parts)
            if weighted:  # nobody here has a limit or a given share, so all of it is shared out
                assert sum(parts) == quota.deserved[queue][r]
            assert all(quota.deserved[k][r] >= quota.guarantee[k][r] for k in below)
    assert quota.deserved[ROOT] == (capacity[0] * 1000, capacity[1] * 1000)
    assert made.quota((capacity[0] * 1000, capacity[1] * 1000), 0) == quota


@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8),
)
def test_water_filling_holds_floors_and_caps_and_gives_all_that_they_allow(
    total: int, rows: list[tuple[int, int, int]]
):
    floors, caps = [f for f, _, _ in rows], [f + c for f, c, _ in rows]
    parts = fill(total, floors, caps, [w for _, _, w in rows])
    assert all(f <= p <= c for f, p, c in zip(floors, parts, caps, strict=True))
    assert sum(parts) == min(max(total, sum(floors)), sum(caps))
    # nobody strictly between its bounds has a part per weight that another could be jealous of
    free = [(p, w) for p, f, c, (_, _, w) in zip(parts, floors, caps, rows, strict=True) if f < p < c]
    for p, w in free:
        for q, v in free:
            assert p * v <= (q + 2) * w + 2 * v


# -- what is refused ---------------------------------------------------------------------------------

G = {"gpu": 4.0}
BAD: list[tuple[str, list[QueueSpec], str, str]] = [
    ("no such queue", [QueueSpec("a"), QueueSpec("b", "aa")], "queues.b.parent", "closest known queue is a"),
    ("a queue is its own ancestor", [QueueSpec("a", "b"), QueueSpec("b", "a")], "queues.a.parent", "a -> b -> a"),
    ("two queues have this name", [QueueSpec("a"), QueueSpec("a")], "queues", "rename"),
    ("a queue has no name", [QueueSpec("")], "queues", "name"),
    ("an amount out of range", [QueueSpec("a", guarantee={"gpu": -1})], "queues.a.guarantee.gpu", "-1"),
    ("not an amount", [QueueSpec("a", limit={"gpu": math.nan})], "queues.a.limit.gpu", "nan"),
    ("not an amount", [QueueSpec("a", lend={"gpu": math.inf})], "queues.a.lend.gpu", "inf"),
    ("no such resource", [QueueSpec("a", deserved={"gpus": 1})], "queues.a.deserved.gpus", "closest is gpu"),
    ("not a weight", [QueueSpec("a", weight=0)], "queues.a.weight", "from 1"),
    ("no such kind", [QueueSpec("a", kind="shared")], "queues.a.kind", "pooled"),
    ("exclusive queue does not borrow", [QueueSpec("a", kind="exclusive", borrow=G)], "queues.a.borrow", "pooled"),
    (
        "its children guarantee 8 (b 4 + c 4), more than that",
        [QueueSpec("a", guarantee={"gpu": 6}), QueueSpec("b", "a", guarantee=G), QueueSpec("c", "a", guarantee=G)],
        "queues.a.guarantee.gpu", "raise it to 8",
    ),
    (
        "its children guarantee 4 (b 4), more than that",
        [QueueSpec("a", guarantee={"gpu": 3}), QueueSpec("b", "a"), QueueSpec("c", "b", guarantee=G)],
        "queues.a.guarantee.gpu", "raise it to 4",
    ),
    (
        "its children deserve 8",
        [QueueSpec("a", deserved={"gpu": 6}), QueueSpec("b", "a", deserved=G), QueueSpec("c", "a", deserved=G)],
        "queues.a.deserved.gpu", "raise it to 8",
    ),
    ("less than the queue's guarantee", [QueueSpec("a", guarantee=G, limit={"gpu": 2})], "queues.a.limit.gpu", "4"),
    (
        "less than the queue's guarantee",
        [QueueSpec("a", guarantee=G, windows=(TimeWindow(weekly("sat"), limit={"gpu": 2}),))],
        "queues.a.limit.gpu", "4",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "specs", "field", "words"), BAD, ids=[f"{f} {p}" for p, _, f, _ in BAD])
def test_a_mistake_is_one_error_with_field_value_and_remedy(problem, specs, field, words):
    with pytest.raises(BadInput) as error:
        tree(*specs)
    assert problem in error.value.problem
    assert error.value.field == field
    assert words in error.value.line()
    assert error.value.remedy


def test_guarantees_beyond_the_fleet_are_refused():
    made = tree(QueueSpec("a", guarantee={"gpu": 6}), QueueSpec("b", guarantee={"gpu": 6}))
    made.check_capacity((12_000,))
    with pytest.raises(BadInput, match=r"guarantee 12 gpu \(a 6 \+ b 6\), and the fleet has 8"):
        made.check_capacity((8_000,))


def test_only_a_queue_without_children_takes_jobs():
    made = tree(QueueSpec("a"), QueueSpec("b", "a"))
    assert made.name(made.leaf("b")) == "b"
    with pytest.raises(BadInput, match="only holds other queues"):
        made.leaf("a")
    with pytest.raises(BadInput, match="no such queue"):
        made.leaf("x")


# -- time --------------------------------------------------------------------------------------------


def test_a_window_changes_the_amounts_while_it_holds():
    day = TimeWindow(weekly("mon-fri 08:00-18:00"), guarantee={"gpu": 6}, deserved={"gpu": 6})
    made = tree(QueueSpec("a", deserved={"gpu": 2}, windows=(day,)), QueueSpec("b"))
    at = [MONDAY + hour * 60 * MINUTE for hour in (7, 8, 17, 18)]
    assert [deserved(made, 8, t)["a"] for t in at] == [2, 6, 6, 2]
    assert made.next_window_ns(at[0] + 1) == at[1]
    assert made.next_window_ns(at[1]) == at[3]
    assert len({made.window_of(t) for t in at}) == 2


def test_windows_are_local_time_also_when_the_clocks_change():
    # 30 March 2026 08:00 in Berlin is 06:00 UTC; a week earlier it was 07:00 UTC
    summer, winter = 1_774_850_400_000_000_000, 1_774_249_200_000_000_000
    eight = weekly("mon 08:00-09:00").spans[0][0]
    assert minute_of_week(summer, BERLIN) == minute_of_week(winter, BERLIN) == eight
    assert next_edge_ns(winter - 1, BERLIN, [weekly("mon 08:00-09:00")]) == winter
    change = BERLIN.changes[1][0]
    assert next_edge_ns(change - 3600_000_000_000, BERLIN, [weekly("wed")]) == change


def test_a_time_range_may_run_over_midnight_and_over_the_end_of_the_week():
    night = weekly("sun 22:00-06:00")
    assert night.spans == ((0, 6 * 60), (6 * 1440 + 22 * 60, 7 * 1440))
    assert weekly("fri-mon").spans == (
        (0, 1440),
        (4 * 1440, 5 * 1440),
        (5 * 1440, 6 * 1440),
        (6 * 1440, 7 * 1440),
    )
    assert night.holds(minute_of_week(MONDAY + 5 * 60 * MINUTE, UTC))


@pytest.mark.parametrize(
    "text", ["", "mon 8-9", "mo", "mon-", "mon 25:00-26:00", "mon 24:00-24:00", "mon 08:00-08:00"]
)
def test_what_is_no_window_is_refused(text):
    with pytest.raises(BadInput):
        weekly(text)


@given(st.integers(0, 4_000_000), st.sampled_from(["mon-fri 08:00-18:00", "sat,sun", "wed 22:00-05:30"]))
def test_between_now_and_the_next_edge_nothing_opens_or_closes(minutes: int, text: str):
    window, now = weekly(text), minutes * MINUTE + 17
    edge = next_edge_ns(now, UTC, [window])
    assert edge is not None
    holds = window.holds(minute_of_week(now, UTC))
    assert edge > now
    assert all(window.holds(minute_of_week(t, UTC)) == holds for t in (edge - 1, (now + edge) // 2))

"""Fairness: the order of queues, what is refused, and books that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from place.queues import HOUR, leaves, shares, trees
from unidle.fleet.queues import QueueSpec
from unidle.place.queue.fair_share import Fairness, FairShare
from unidle.place.queue.tree import ROOT, Entitlement, QueueTree
from unidle.view.usage import decay_ppb

CAPACITY = (40_000, 60_000)


def order(books: FairShare, each: int, rounds: int) -> str:
    """The queues of the next jobs of ``each`` GPUs, as they would start."""
    found = []
    for _ in range(rounds):
        leaf = books.next_queue()
        if leaf is None:
            break
        if books.refusal(leaf, (each * 1000,), firm=False):
            books.block(leaf)
            continue
        books.withdraw(leaf, (each * 1000,))
        books.charge(leaf, (each * 1000,), firm=False)
        found.append(books.tree.name(leaf))
    return "".join(found)


def with_waiting(books: FairShare, jobs: int, each: int = 1) -> FairShare:
    for leaf in leaves(books.tree):
        for _ in range(jobs):
            books.submit(leaf, (each * 1000,))
    return books


def test_queues_take_turns_by_weight():
    books = with_waiting(shares(QueueSpec("a", weight=2), QueueSpec("b"), gpus=12), 20)
    taken = order(books, 1, 20)
    assert len(taken) == 12
    assert (taken.count("a"), taken.count("b")) == (8, 4)
    assert taken[:3].count("a") == 2


def test_below_the_guarantee_comes_before_below_deserved_before_borrowing():
    books = with_waiting(shares(QueueSpec("a", guarantee={"gpu": 2}), QueueSpec("b"), gpus=8), 9)
    assert order(books, 1, 8)[:2] == "aa"


def test_what_one_queue_does_not_want_the_others_borrow():
    books = shares(QueueSpec("a"), QueueSpec("b"), gpus=8)
    for _ in range(9):
        books.submit(books.tree.leaf("b"), (1000,))
    assert order(books, 1, 9) == "b" * 8
    a, b = books.report()
    assert (b.borrowed, a.lent, b.waiting) == ((4000,), (4000,), (1000,))


def test_a_guarantee_is_kept_while_its_queue_is_idle():
    books = shares(QueueSpec("a", guarantee={"gpu": 3}), QueueSpec("b"), gpus=8)
    b = books.tree.leaf("b")
    for _ in range(9):
        books.submit(b, (1000,))
    assert order(books, 1, 9) == "b" * 5
    refusal = books.refusal(b, (1000,), firm=False)
    assert refusal is not None
    assert (refusal.rule, refusal.queue, refusal.bound) == ("kept", ROOT, 5000)
    assert books.refusal(books.tree.leaf("a"), (3000,), firm=True) is None


def test_an_exclusive_queue_neither_lends_nor_borrows():
    books = shares(QueueSpec("x", kind="exclusive"), QueueSpec("b"), gpus=8)
    x, b = books.tree.leaf("x"), books.tree.leaf("b")
    assert books.refusal(b, (5000,), firm=False) is not None
    assert books.refusal(b, (4000,), firm=False) is None
    assert books.refusal(x, (5000,), firm=False) is not None


def test_a_firm_job_runs_only_on_what_its_queue_deserves():
    books = shares(QueueSpec("a"), QueueSpec("b"), gpus=8)
    b = books.tree.leaf("b")
    refusal = books.refusal(b, (5000,), firm=True)
    assert refusal is not None
    assert refusal.rule == "deserved"
    assert books.refusal(b, (5000,), firm=False) is None
    lax = FairShare(books.tree, (8000,), 0, Fairness(firm_borrows=True))
    assert lax.refusal(b, (5000,), firm=True) is None


def test_history_lets_the_queue_go_first_that_used_less():
    books = with_waiting(shares(QueueSpec("a"), QueueSpec("b"), gpus=8), 4)
    a = books.tree.leaf("a")
    books.charge(a, (4000,), firm=False)
    books.begin(48 * HOUR)
    books.refund(a, (4000,), firm=False)
    books.begin(49 * HOUR)
    assert books.history_ppb(a) > 300_000_000
    assert order(books, 1, 4) == "bbba"


def test_history_halves_in_a_half_life():
    assert decay_ppb(24 * HOUR, 24 * HOUR) == 500_000_000
    assert decay_ppb(72 * HOUR, 24 * HOUR) == 125_000_000
    assert decay_ppb(0, HOUR) == 1_000_000_000
    assert decay_ppb(10_000 * HOUR, HOUR) == 0


def test_a_windows_opening_changes_what_is_admitted_at_the_next_round():
    from unidle.fleet.queues import TimeWindow, weekly

    night = TimeWindow(weekly("mon-sun 22:00-06:00"), limit={"gpu": 2})
    books = shares(QueueSpec("a", limit={"gpu": 8}, windows=(night,)), gpus=8, now_ns=12 * HOUR)
    a = books.tree.leaf("a")
    assert books.refusal(a, (3000,), firm=False) is None
    books.begin(23 * HOUR)
    assert books.refusal(a, (3000,), firm=False) is not None


# -- properties --------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 6), st.integers(0, 6), st.booleans(), st.integers(0, 3)),
    max_size=30,
)


def walk(made: QueueTree, moves: list[tuple[int, int, int, bool, int]]) -> FairShare:
    """Start what is admitted, in any queues, and end some of it."""
    books = FairShare(made, CAPACITY, 0)
    ends = leaves(made)
    held: list[tuple[int, tuple[int, int], bool]] = []
    for pick, gpus, cpus, firm, what in moves:
        leaf, amounts = ends[pick % len(ends)], (gpus * 1000, cpus * 1000)
        if what == 0 and held:
            leaf, amounts, firm = held.pop(pick % len(held))
            books.refund(leaf, amounts, firm=firm)
        elif what == 1:
            books.submit(leaf, amounts)
        elif books.refusal(leaf, amounts, firm=firm) is None:
            books.charge(leaf, amounts, firm=firm)
            held.append((leaf, amounts, firm))
    return books


@given(trees(), steps)
def test_quota_and_guarantee_hold_after_any_admissions(made: QueueTree, moves):
    books = walk(made, moves)
    for queue in range(len(made)):
        for r in range(2):
            used = books.used[queue][r]
            assert 0 <= used <= max(books.quota.bound[queue][r], 0)
            assert (
                sum(books.used[k][r] for k in made.children[queue]) in (used, 0) or not made.children[queue]
            )
            if queue:
                assert books.firm[queue][r] <= books.quota.deserved[queue][r]


@given(trees(), steps, st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_a_job_within_the_guarantee_of_its_queue_is_never_refused(made: QueueTree, moves, pick, gpus, cpus):
    guaranteed = [
        sum(q) for q in zip(*(made.quota(CAPACITY, 0).guarantee[k] for k in leaves(made)), strict=True)
    ]
    if any(g > c for g, c in zip(guaranteed, CAPACITY, strict=True)):
        return
    books = walk(made, moves)
    ends = leaves(made)
    leaf = ends[pick % len(ends)]
    amounts = (gpus * 1000, cpus * 1000)
    if all(
        not a or u + a <= g
        for u, a, g in zip(books.used[leaf], amounts, books.quota.guarantee[leaf], strict=True)
    ):
        assert books.refusal(leaf, amounts, firm=False) is None


@given(trees(), steps)
def test_books_follow_the_jobs_and_do_not_depend_on_the_order(made: QueueTree, moves):
    books = walk(made, moves)
    fresh = FairShare(made, CAPACITY, 0)
    for leaf in leaves(made):
        fresh.charge(leaf, books.firm[leaf], firm=True)
        fresh.charge(
            leaf, [u - f for u, f in zip(books.used[leaf], books.firm[leaf], strict=True)], firm=False
        )
    assert fresh.used == books.used
    assert fresh.firm == books.firm
    for leaf in leaves(made):
        for amounts in ((1000, 0), (0, 2000), (3000, 3000)):
            assert fresh.refusal(leaf, amounts, firm=False) == books.refusal(leaf, amounts, firm=False)
    for now, before in zip(books.report(), fresh.report(), strict=True):
        assert (now.used, now.borrowed, now.lent, now.share_ppb) == (
            before.used, before.borrowed, before.lent, before.share_ppb,
        )  # fmt: skip


@given(trees(), steps)
def test_entitlement_kept_up_to_date_is_that_made_anew(made: QueueTree, moves):
    books = FairShare(made, CAPACITY, 0)
    books.entitled(ROOT)
    ends = leaves(made)
    for pick, gpus, cpus, firm, what in moves:
        leaf = ends[pick % len(ends)]
        if what:
            books.submit(leaf, (gpus * 1000, cpus * 1000))
        else:
            books.charge(leaf, (gpus * 1000, cpus * 1000), firm=firm)
        books.entitled(leaf)
    wanted = [[u + w for u, w in zip(books.used[k], books.waiting[k], strict=True)] for k in range(len(made))]
    anew = Entitlement(made, books.quota, wanted)
    assert [books.entitled(k) for k in range(len(made))] == [anew.of(k) for k in range(len(made))]


@given(trees(), steps)
def test_everyone_is_entitled_to_what_it_wants_of_what_it_deserves_and_all_to_the_capacity(
    made: QueueTree, moves
):
    books = FairShare(made, CAPACITY, 0)
    ends = leaves(made)
    for pick, gpus, cpus, _, _ in moves:
        books.submit(ends[pick % len(ends)], (gpus * 1000, cpus * 1000))
    for r in range(2):
        assert sum(books.entitled(leaf)[r] for leaf in ends) <= CAPACITY[r]
        for leaf in ends:
            want, part = books.waiting[leaf][r], books.entitled(leaf)[r]
            bounds = [books.quota.bound[k][r] for k in made.path(leaf)]
            assert part <= min(want, *bounds)
            if all(b >= CAPACITY[r] for b in bounds[1:]):
                assert part >= min(want, books.quota.deserved[leaf][r], bounds[0])


@given(trees(), steps)
def test_the_next_queue_is_the_least_at_every_level(made: QueueTree, moves):
    books = walk(made, moves)
    leaf = books.next_queue()
    waiting = {k for k in leaves(made) if books._jobs[k]}
    assert (leaf is None) == (not waiting)
    if leaf is None:
        return
    for queue in made.path(leaf)[:-1]:
        siblings = [
            k for k in made.children[made.parent[queue]] if any(k in made.path(other) for other in waiting)
        ]
        assert (*books._key(queue), queue) == min((*books._key(k), k) for k in siblings)


@pytest.mark.parametrize("half_life", [HOUR, 24 * HOUR])
def test_history_does_not_depend_on_how_often_it_is_looked_at(half_life):
    def made() -> FairShare:
        return FairShare(shares(QueueSpec("a"), gpus=8).tree, (8000,), 0, Fairness(half_life_ns=half_life))

    often, seldom = made(), made()
    for books in (often, seldom):
        books.charge(1, (4000,), firm=False)
    for hour in range(1, 49):
        often.begin(hour * HOUR)
        often.history_ppb(1)
    seldom.begin(48 * HOUR)
    assert abs(often.history_ppb(1) - seldom.history_ppb(1)) < 100


def test_what_an_idle_queue_does_not_lend_no_other_is_entitled_to() -> None:
    books = shares(QueueSpec("a", guarantee={"gpu": 3}), QueueSpec("b"), gpus=10)
    b = next(leaf for leaf in leaves(books.tree) if books.tree.name(leaf) == "b")
    books.submit(b, (10_000,))
    assert books.entitled(b) == (7_000,)

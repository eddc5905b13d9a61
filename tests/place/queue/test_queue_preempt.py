"""Preemption: who may be stopped for whom, at what loss, and that nothing goes in circles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from place.queues import BOTH, HOUR, anywhere, leaves, shares, tree, within
from unidle.fleet.queues import QueueSpec
from unidle.jobs import Reason
from unidle.place.actions.preempt import preempt, preempt_all
from unidle.place.model import Demand, Fits, Hold, Running
from unidle.place.model import started as begun
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import dominant, rights
from unidle.place.session import Preemption

NOW = 10 * HOUR


def run(job: str, queue: str, devices: dict[int, int], level="low", started=0, **known) -> Running:
    return Running(job, queue, level, started, devices, (sum(devices.values()) * 1000,), **known)


def want(queue: str, ranks: int, each: int = 1, level="medium", job: str = "new") -> Demand:
    return Demand(job, queue, level, ranks, each, (ranks * each * 1000,))


def two_queues(running: Sequence[Running], nodes: int = 2, per: int = 4, a: int | None = None) -> Allocations:
    """Queue ``a`` deserves ``a`` GPUs (half by default), ``b`` the rest."""
    total = nodes * per
    books = shares(
        QueueSpec("a", deserved={"gpu": total // 2 if a is None else a}), QueueSpec("b"), gpus=total
    )
    return Allocations(np.full(nodes, per), books, running)


def stopped(answer: Preemption | Reason) -> list[str]:
    assert isinstance(answer, Preemption), answer
    return sorted(answer.victims)


# -- rights ------------------------------------------------------------------------------------------


def test_a_queue_takes_back_what_it_lent_at_the_least_loss():
    state = two_queues([run(f"b{k}", "b", {k // 4: 1}, started=k * HOUR) for k in range(8)])
    assert stopped(preempt(state, want("a", 2), anywhere(2), NOW)) == ["b6", "b7"]


def test_work_that_is_saved_is_not_lost():
    old = run("saved", "b", {0: 1}, last_saved_ns=NOW - HOUR // 60, restart_ns=HOUR // 60)
    state = two_queues([old, *(run(f"b{k}", "b", {k // 4: 1}, started=9 * HOUR) for k in range(1, 8))])
    answer = preempt(state, want("a", 1), anywhere(1), NOW)
    assert stopped(answer) == ["saved"]
    assert isinstance(answer, Preemption)
    assert answer.lost_us == 2 * 60 * 1_000_000


def test_a_victims_queue_never_falls_below_what_it_deserves():
    state = two_queues([run("big", "b", {0: 3}), run("more", "b", {1: 3})], a=5)
    answer = preempt(state, want("a", 5), anywhere(5), NOW)  # b deserves 3 and uses 6: one of them may go
    assert len(stopped(answer)) == 1
    state = two_queues([run("big", "b", {0: 4, 1: 2})], a=5)  # b would be left with nothing
    answer = preempt(state, want("a", 5), anywhere(5), NOW)
    assert isinstance(answer, Reason)
    assert answer.code == "no_victims"


def test_a_queue_above_its_share_takes_nothing_back():
    state = two_queues([run("a1", "a", {0: 4}), *(run(f"b{k}", "b", {1: 1}) for k in range(4))])
    answer = preempt(state, want("a", 1), anywhere(1), NOW)
    assert isinstance(answer, Reason)
    assert answer.code == "no_right_to_preempt"


@pytest.mark.parametrize(("level", "works"), [("high", True), ("medium", False), ("low", False)])
def test_only_a_high_job_stops_low_ones_of_its_own_queue(level, works):
    state = two_queues([run(f"a{k}", "a", {0: 1}) for k in range(4)] + [run("b", "b", {1: 4}, "medium")])
    assert isinstance(preempt(state, want("a", 1, level=level), anywhere(1), NOW), Preemption) == works


@pytest.mark.parametrize("level", ["high", "medium"])
def test_jobs_that_are_not_low_are_never_stopped(level):
    books = FairShare(tree(QueueSpec("a"), QueueSpec("b")), (8000,), 0)
    state = Allocations(np.array([8]), books, [run("b", "b", {0: 8}, level)])
    assert isinstance(preempt(state, want("a", 1, level="high"), anywhere(1), NOW), Reason)


def test_a_job_is_not_stopped_before_its_minimum_runtime():
    young = run("young", "b", {0: 4, 1: 4}, started=NOW - HOUR, min_runtime_ns=2 * HOUR)
    state = two_queues([young], a=8)
    assert isinstance(preempt(state, want("a", 1), anywhere(1), NOW), Reason)
    assert isinstance(preempt(state, want("a", 1), anywhere(1), NOW + HOUR), Preemption)


def test_what_is_not_reclaimable_is_not_taken_back():
    books = shares(QueueSpec("a"), QueueSpec("b", reclaimable=False), gpus=8)
    state = Allocations(np.array([8]), books, [run(f"b{k}", "b", {0: 1}) for k in range(8)])
    assert isinstance(preempt(state, want("a", 1), anywhere(1), NOW), Reason)


def test_a_public_queue_takes_nothing_back():
    books = shares(QueueSpec("p", kind="public", deserved={"gpu": 4}), QueueSpec("b"), gpus=8)
    state = Allocations(np.array([8]), books, [run(f"b{k}", "b", {0: 1}) for k in range(8)])
    assert isinstance(preempt(state, want("p", 1), anywhere(1), NOW), Reason)


def test_a_department_takes_back_for_a_team_that_is_above_its_own_share():
    books = shares(
        QueueSpec("dep"), QueueSpec("other"), QueueSpec("t1", "dep"), QueueSpec("t2", "dep"), gpus=8
    )
    held = [run("t", "t1", {0: 2}), *(run(f"o{k}", "other", {0: 1}) for k in range(6))]
    state = Allocations(np.array([8]), books, held)
    assert len(stopped(preempt(state, want("t1", 2, level="low"), anywhere(2), NOW))) == 2


# -- shape, hold, speculation ------------------------------------------------------------------------


def test_victims_are_chosen_in_the_domain_where_the_gang_loses_least():
    held = [run(f"b{k}", "b", {k: 4}, started=(9 if k in (1, 2) else 8) * HOUR) for k in range(4)]
    state = two_queues(held, nodes=4)
    domains = [(0, 2), (2, 4)]
    answer = preempt(state, want("a", 2, each=4), within(2, domains), NOW, domains=domains)
    assert stopped(answer) in (["b0", "b1"], ["b2", "b3"])  # not b1 and b2, the cheapest two
    free_choice = preempt(two_queues(held, nodes=4), want("a", 2, each=4), anywhere(2), NOW)
    assert stopped(free_choice) == ["b1", "b2"]


def test_freed_quota_and_devices_are_held_for_the_job_until_they_expire():
    state = two_queues([run(f"b{k}", "b", {k // 4: 1}) for k in range(8)])
    answer = preempt(state, want("a", 4), anywhere(4), NOW, hold_ns=HOUR)
    assert isinstance(answer, Preemption)
    assert int(state.free.sum()) == 0
    assert sum(answer.hold.devices.values()) == 4
    assert state.shares.refusal(2, (1000,), firm=False) is not None  # b cannot come back for it
    assert state.expire(NOW + HOUR - 1) == ()
    assert state.expire(NOW + HOUR) == ("new",)
    assert int(state.free.sum()) == 4


def test_a_job_starts_on_what_is_held_for_it():
    state = two_queues([run(f"b{k}", "b", {k // 4: 1}) for k in range(8)])
    answer = preempt(state, want("a", 4), anywhere(4), NOW)
    assert isinstance(answer, Preemption)
    state.start(run("new", "a", dict(answer.hold.devices), "medium"))
    assert not state.holds
    assert state.shares.used[1] == [4000]


def test_what_cannot_be_done_changes_nothing():
    books = shares(QueueSpec("a", limit={"gpu": 2}, deserved={"gpu": 2}), QueueSpec("b"), gpus=8)
    state = Allocations(np.array([8]), books, [run(f"a{k}", "a", {0: 1}) for k in range(2)])
    before = (state.free.tolist(), dict(state.running), [list(row) for row in books.used])
    answer = preempt(state, want("a", 3, level="high"), anywhere(3), NOW)
    assert isinstance(answer, Reason)
    assert answer.code == "quota"
    assert before == (state.free.tolist(), state.running, books.used)


def test_equal_demands_of_one_rank_are_answered_together_as_one_by_one():
    held = [run(f"b{k}", "b", {k // 4: 1}, started=(k * 7 % 13) * HOUR // 2) for k in range(16)]
    demands = [want("a", 1, job=f"n{k}") for k in range(10)]
    allowed = np.ones(4, np.bool_)
    together = preempt_all(
        two_queues(held, nodes=4), demands, lambda _: anywhere(1), NOW, allowed_of=lambda _: allowed
    )
    each = preempt_all(two_queues(held, nodes=4), demands, lambda _: anywhere(1), NOW)
    assert [isinstance(a, Preemption) for a in together.values()] == [True] * 8 + [False] * 2

    def lost(answers: dict[str, Preemption | Reason]) -> list[str]:
        return sorted(v for a in answers.values() if isinstance(a, Preemption) for v in a.victims)

    assert lost(together) == lost(each)


def test_the_dominant_resource_is_that_of_which_most_of_the_fleet_is_wanted():
    books = FairShare(tree(QueueSpec("a"), resources=("gpu", "cpu")), (8000, 64_000), 0)
    assert dominant(books, (1000, 4000)) == 0
    assert dominant(books, (1000, 32_000)) == 1
    assert dominant(books, (0, 0)) == 0


# -- properties --------------------------------------------------------------------------------------


@st.composite
def crowded(draw: st.DrawFn, gangs: bool) -> tuple[Allocations, Demand, Fits, list[tuple[int, int]] | None]:
    nodes, per = draw(st.integers(1, 4)), draw(st.sampled_from([2, 4, 8]))
    free = [per] * nodes
    held = []
    for k in range(draw(st.integers(0, 7))):
        spread = gangs and draw(st.booleans())
        wanted = draw(
            st.lists(st.integers(0, nodes - 1), min_size=1, max_size=2 if spread else 1, unique=True)
        )
        devices = {n: min(free[n], draw(st.integers(1, per))) for n in wanted}
        devices = {n: d for n, d in devices.items() if d}
        for n, d in devices.items():
            free[n] -= d
        if devices:
            held.append(
                run(f"v{k}", draw(st.sampled_from("bc")), devices, started=draw(st.integers(0, 9)) * HOUR)
            )
    each = draw(st.sampled_from([1, 2, per]))
    ranks = draw(st.integers(1, max(nodes * per // each, 1)))
    total = nodes * per
    books = shares(
        QueueSpec("a", deserved={"gpu": draw(st.integers(0, total))}),
        QueueSpec("b"),
        QueueSpec("c"),
        gpus=total,
    )
    domains = draw(st.sampled_from([None, [(0, nodes // 2), (nodes // 2, nodes)]]))
    demand = want("a", ranks, each, draw(st.sampled_from(["low", "medium", "high"])))
    return Allocations(np.full(nodes, per), books, held), demand, within(ranks, domains), domains


def least_loss(state: Allocations, demand: Demand, fits: Fits) -> int | None:
    """The least loss of all sets of low jobs whose devices make room, by trying each."""
    held = list(state.running.values())
    best = None
    for pick in range(1 << len(held)):
        chosen = [r for k, r in enumerate(held) if pick >> k & 1]
        free = state.free.copy()
        for r in chosen:
            for node, devices in r.devices.items():
                free[node] += devices
        cost = sum(r.lost_us(NOW) for r in chosen)
        if (best is None or cost < best) and fits(free // demand.each) is not None:
            best = cost
    return best


@given(crowded(gangs=False))
def test_where_no_victim_spans_nodes_no_other_choice_loses_less(world):
    state, demand, fits, domains = world
    books = shares(QueueSpec("a", deserved={"gpu": int(state.devices.sum())}), QueueSpec("b"), QueueSpec("c"),
                   gpus=int(state.devices.sum()))  # fmt: skip
    free_to_take = Allocations(state.devices, books, state.running.values())
    best = least_loss(free_to_take, demand, fits)
    answer = preempt(free_to_take, demand, fits, NOW, domains=domains)
    assert best == (answer.lost_us if isinstance(answer, Preemption) else None)


@st.composite
def scarce(draw: st.DrawFn) -> tuple[Allocations, Demand, Fits, list[tuple[int, int]] | None]:
    """Jobs on two kinds of devices of the same hosts, some on several nodes, each with CPU and memory of its own."""
    nodes, per, kinds = draw(st.integers(1, 3)), draw(st.sampled_from([2, 4])), draw(st.integers(1, 2))
    hosts = np.array([[draw(st.integers(4, 16)) for _ in range(nodes)] for _ in range(2)], np.int64)
    free, left = [per] * (nodes * kinds), hosts.copy()
    held: list[Running] = []
    for k in range(draw(st.integers(0, 6))):
        kind = draw(st.integers(0, kinds - 1)) * nodes
        on = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=2, unique=True))
        asks = draw(st.integers(0, 6)), draw(st.integers(0, 6))
        devices = {kind + n: 1 for n in on if free[kind + n] and all(left[r][n] >= asks[r] for r in range(2))}
        for n in devices:
            free[n] -= 1
            left[:, n % nodes] -= asks
        if devices:
            queue, since = draw(st.sampled_from("bcd")), draw(st.integers(0, 9)) * HOUR
            held.append(run(f"v{k}", queue, devices, started=since, ranks=len(devices), asks=asks))
    total = nodes * per * kinds
    deserved = draw(st.integers(0, total)), draw(st.integers(0, 4))
    books = shares(QueueSpec("a", deserved={"gpu": deserved[0]}), QueueSpec("b", deserved={"gpu": deserved[1]}),
                   QueueSpec("other"), QueueSpec("c", "other"), QueueSpec("d", "other"), gpus=total)  # fmt: skip
    each = draw(st.integers(1, 2))
    ranks = draw(st.integers(1, nodes * per // each))
    asks = draw(st.integers(0, 8)), draw(st.integers(0, 8))
    demand = Demand("new", "a", draw(st.sampled_from(["medium", "high"])), ranks, each, (ranks * each * 1000,),
                    asks=asks)  # fmt: skip
    domains = draw(st.sampled_from([[(0, nodes)], [(0, nodes // 2), (nodes // 2, nodes)]]))
    domains = [(start, end) for start, end in domains if end > start]
    state = Allocations(np.full(nodes * kinds, per), books, held, hosts)
    return state, demand, within(ranks, domains), domains


def least_allowed(state: Allocations, demand: Demand, fits: Fits) -> int | None:
    """The least loss of all sets of jobs that may be stopped together and make room, by trying each."""
    may = rights(state.shares, demand)
    held = list(state.running.values())
    best = None
    for pick in range(1 << len(held)):
        chosen = [r for k, r in enumerate(held) if pick >> k & 1]
        cost = sum(r.lost_us(NOW) for r in chosen)
        if best is not None and cost >= best:
            continue
        if not all(may.within(chosen, [state.shares.tree.leaf(r.queue) for r in chosen])):
            continue
        mark = state.log.checkpoint()
        for r in chosen:
            state.stop(r.job)
        leaf = state.shares.tree.leaf(demand.queue)
        refused = state.shares.refusal(leaf, demand.charged, firm=demand.firm)
        if refused is None and fits(state.room(demand)) is not None:
            best = cost
        state.log.rollback(mark)
    return best


@settings(max_examples=400)
@given(scarce())
def test_whatever_is_scarce_no_other_choice_that_may_be_made_loses_less(world):
    state, demand, fits, domains = world
    best = least_allowed(state, demand, fits)
    answer = preempt(state, demand, fits, NOW, domains=domains)
    ours = answer.lost_us if isinstance(answer, Preemption) else None
    assert (ours is None) == (best is None)
    if ours is not None and best is not None:
        assert best <= ours <= best + len(state.free)  # a gang's cost by node is rounded up to microseconds


def test_who_holds_only_cpu_on_the_host_is_stopped_for_a_job_that_lacks_cpu():
    """The GPUs are free, and a job on the host's CPU devices holds the CPU that the gang asks for."""
    hog = run("hog", "b", {1: 1}, asks=(8, 0))  # node 1: the CPU devices of host 0
    books = shares(QueueSpec("a", deserved={"gpu": 4}), QueueSpec("b", deserved={"gpu": 0}), gpus=4)
    state = Allocations(np.array([2, 2]), books, [hog], np.array([[8], [8]]))
    demand = Demand("new", "a", "medium", 1, 1, (1000,), asks=(4, 0))
    assert stopped(preempt(state, demand, within(1, [(0, 1)]), NOW, domains=[(0, 1)])) == ["hog"]
    assert state.room(demand)[0] == 2


def test_the_cheapest_set_on_a_node_frees_the_cpu_too():
    """By devices alone the cheap job goes first, and the dear one after it for its CPU: the dear one alone will do."""
    cheap, dear = (
        run("cheap", "b", {0: 1}, started=9 * HOUR, asks=(1, 0)),
        run("dear", "b", {0: 1}, started=8 * HOUR, asks=(6, 0)),
    )
    books = shares(QueueSpec("a", deserved={"gpu": 2}), QueueSpec("b", deserved={"gpu": 0}), gpus=2)
    state = Allocations(np.array([2]), books, [cheap, dear], np.array([[8], [8]]))
    demand = Demand("new", "a", "medium", 1, 1, (1000,), asks=(6, 0))
    assert stopped(preempt(state, demand, anywhere(1), NOW)) == ["dear"]


@given(crowded(gangs=True))
def test_after_preemption_the_books_and_the_devices_are_right(world):
    state, demand, fits, domains = world
    before = {r.job: r for r in state.running.values()}
    answer = preempt(state, demand, fits, NOW, domains=domains)
    used = np.zeros(len(state.free), np.int64)
    for held in (*state.running.values(), *state.holds.values()):
        for node, devices in held.devices.items():
            used[node] += devices
    assert (state.free + used == state.devices).all()
    assert (state.free >= 0).all()
    for queue in leaves(state.shares.tree):
        name = state.shares.tree.name(queue)
        charged = sum(r.charged[0] for r in state.running.values() if r.queue == name)
        charged += sum(h.charged[0] for h in state.holds.values() if h.queue == name)
        assert state.shares.used[queue][0] == charged
    if isinstance(answer, Reason):
        assert state.running == before
        return
    counts = {node: devices // demand.each for node, devices in answer.hold.devices.items()}
    assert sum(counts.values()) == demand.ranks
    assert fits(np.array([counts.get(n, 0) for n in range(len(state.free))])) is not None
    for victim in answer.victims:
        assert before[victim].level == "low"
    for name in {before[v].queue for v in answer.victims} - {demand.queue}:
        queue = state.shares.tree.leaf(name)
        assert state.shares.above(queue, 0) >= 0
        if answer.victims:
            assert state.shares.above(1, 0) <= 0


@given(crowded(gangs=True), st.lists(st.integers(0, 5), max_size=12))
def test_a_rolled_back_journal_leaves_no_trace(world, moves):
    state, demand, fits, domains = world

    def look() -> tuple[object, ...]:
        books = state.shares
        return (
            state.free.tolist(), sorted(state.running), dict(state.holds), [list(r) for r in books.used],
            [list(r) for r in books.firm], [books.refusal(q, (1000,), firm=False) for q in leaves(books.tree)],
        )  # fmt: skip

    before, mark = look(), state.log.checkpoint()
    preempt(state, demand, fits, NOW, domains=domains)
    for k in moves:
        if state.running and k % 2:
            state.stop(sorted(state.running)[k % len(state.running)])
        else:
            node = k % len(state.free)
            hold = Hold(f"h{k}", "b", (1000,), firm=False, devices={node: min(1, int(state.free[node]))})
            state.hold(hold)
    state.log.rollback(mark)
    assert look() == before


@settings(max_examples=60)
@given(st.data())
def test_preemption_never_goes_in_circles(data):
    """All queues want all they can get, every round; at a fixed demand stops come to an end."""
    per, nodes = 4, data.draw(st.integers(1, 3))
    weights = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    books = shares(*(QueueSpec(f"q{k}", weight=w) for k, w in enumerate(weights)), gpus=per * nodes)
    state = Allocations(np.full(nodes, per), books)
    waiting = [
        want(f"q{data.draw(st.integers(0, len(weights) - 1))}", data.draw(st.integers(1, 4)), 1,
             data.draw(st.sampled_from(["low", "low", "medium", "high"])), f"j{k}")
        for k in range(data.draw(st.integers(1, 14)))
    ]  # fmt: skip
    jobs = {demand.job: demand for demand in waiting}
    quiet = 0
    for at in range(200):
        changed = False
        for demand in list(waiting):
            answer: Preemption | Reason | None = None
            leaf = books.tree.leaf(demand.queue)
            counts = anywhere(demand.ranks)(state.room(demand))
            fits = books.refusal(leaf, demand.charged, firm=demand.firm) is None and counts is not None
            if fits:
                devices = {int(n): int(counts[n]) for n in np.flatnonzero(counts)}
            else:
                answer = preempt(state, demand, anywhere(demand.ranks), at * HOUR)
                if isinstance(answer, Reason):
                    continue
                devices = dict(answer.hold.devices)
            changed = True
            waiting.remove(demand)
            state.start(run(demand.job, demand.queue, devices, demand.level, at * HOUR))
            if isinstance(answer, Preemption):
                waiting += [jobs[victim] for victim in answer.victims]
        quiet = 0 if changed else quiet + 1
        if quiet == 2:
            break
    assert quiet == 2, "preemption goes on although nothing new was asked for"


@settings(max_examples=150)
@given(st.data())
def test_stops_that_follow_from_stops_come_to_an_end(data):
    """A stops B, B's restart stops C: in a nested tree, with two resources and gangs, at a demand that only grows.

    One more job comes in each round until all are there; who is stopped asks again at once. Nobody is stopped twice
    for the same job but where that was stopped itself in between, so no two stop each other in turn.
    """
    per, nodes = 4, data.draw(st.integers(1, 2))

    def of(name: str, parent: str | None = None) -> QueueSpec:
        own = {"gpu": data.draw(st.integers(0, per * nodes // 2))} if data.draw(st.booleans()) else {}
        return QueueSpec(name, parent, data.draw(st.integers(1, 3)), deserved=own)

    specs = [of("p"), of("q"), *(of(f"{parent}{k}", parent) for parent in "pq" for k in range(2))]
    queues = tree(*(replace(s, deserved={}) if s.parent else s for s in specs), resources=BOTH)
    books = FairShare(queues, (per * nodes * 1000, per * nodes * 2000), 0)
    coming = []
    for k in range(4 * nodes + data.draw(st.integers(1, 8))):
        low = k < 4 * nodes  # the first ones fill the fleet
        level = "low" if low else data.draw(st.sampled_from(["low", "medium", "high"]))
        ranks, cpus = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 2))
        queue = data.draw(st.sampled_from(["p1", "q0", "q0", "q1"] if low else ["p0", "p0", "p1", "q1"]))
        asks = (cpus * 1000, 0)
        coming.append(Demand(f"j{k}", queue, level, ranks, 1, (ranks * 1000, ranks * cpus * 1000), asks=asks))
    jobs, waiting = {demand.job: demand for demand in coming}, list[Demand]()
    state = Allocations(np.full(nodes, per), books, hosts=np.full((2, nodes), per * 2000))
    stops: list[tuple[str, int, str]] = []  # for whom, how often that was stopped before, and who
    for at in range(len(jobs) ** 2 + len(jobs) + 1):
        changed = bool(coming)
        waiting += [coming.pop(0)] if coming else []
        books.begin(at * HOUR)
        for demand in list(waiting):
            counts = anywhere(demand.ranks)(state.room(demand))
            leaf = queues.leaf(demand.queue)
            if counts is None or books.refusal(leaf, demand.charged, firm=demand.firm):
                answer = preempt(state, demand, anywhere(demand.ranks), at * HOUR)
                if isinstance(answer, Reason):
                    continue
                before = sum(victim == demand.job for _, _, victim in stops)
                stops += [(demand.job, before, victim) for victim in answer.victims]
                waiting += [jobs[victim] for victim in answer.victims]
                devices = dict(answer.hold.devices)
            else:
                devices = {int(n): int(counts[n]) for n in np.flatnonzero(counts)}
            changed = True
            waiting.remove(demand)
            state.start(begun(demand, devices, at * HOUR))
        if not changed:
            break
    assert not changed, f"stops go on although nothing new was asked for: {stops[-6:]}"
    assert len(set(stops)) == len(stops)

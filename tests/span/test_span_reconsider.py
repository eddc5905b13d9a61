"""What a run decides after some steps: what differs from the plan, and whether another plan is worth a restart."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.errors import CannotRun
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.replan.decide import Replan, first_choice, orders, rearranged, reconsider, said
from unidle.span.replan.drift import Drift, drift
from unidle.span.replan.observed import Remaining, Step, row_of
from unidle.span.replan.survivors import moved
from unidle.span.simulate.iteration import Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES
from unidle.span.simulate.timeline import OpRow
from unidle.span.simulate.uneven import PipelineShares, simulated

MS = 1_000_000
SECOND = 1_000 * MS


def setting(stages: int = 3, microbatches: int = 8, **fields: Any) -> Setting:
    names = "abcdefgh"[:stages]
    links = tuple(WanLink(a, b, 2 * MS, 1.0, None) for a, b in pairwise(names))
    return Setting(
        tuple(Stage(10 * MS, 10 * MS, 10 * MS, 10 * MS, 400, 100) for _ in names), microbatches,
        tuple(Site(name, 1) for name in names), links, input_bytes=100_000, wide=False, **fields,
    )  # fmt: skip


def steps_of(
    simulation: Simulation, slow: dict[int, float] | None = None, links: float = 1.0, count: int = 2
) -> list[Step]:
    """Steps as ranks tell of them: operations of these stages, and all transfers, take so many times as long."""
    found = []
    for number in range(count):
        step = Step(number, 1, (simulation.setting.microbatches,))
        for row in simulation.rows():
            took = row.end_ns - row.start_ns
            if row.op in ("F", "B", "W", "R"):
                took = round(took * (slow or {}).get(row.stage, 1.0))
            elif row.op == "send":  # until it was acknowledged
                took = round(took * links) + 2 * 2 * MS
            step.rows.append(row._replace(end_ns=row.start_ns + took))
        found.append(step)
    return found


def decided(simulation: Simulation, seen: Drift, schedule: str, cut: tuple[int, ...] | None = None) -> Replan:
    return reconsider(seen, first_choice(simulation.setting, SCHEDULES[schedule], cut), simulation, cut)


@given(st.sampled_from(["gpipe", "1f1b", "zb-h1", "varuna", "unidle"]), st.integers(2, 4), st.integers(3, 9))
def test_a_run_that_goes_as_planned_is_left_alone(name: str, stages: int, microbatches: int) -> None:
    simulation = simulate(setting(stages, microbatches), SCHEDULES[name])
    seen = drift(simulation, steps_of(simulation))
    assert not seen
    assert seen.setting == simulation.setting


def test_a_slow_link_is_named_and_a_schedule_that_hides_it_is_taken() -> None:
    simulation = simulate(setting(2, 12), SCHEDULES["1f1b"])
    seen = drift(simulation, steps_of(simulation, links=20))
    assert set(seen.links) == {("a", "b")}
    assert not seen.stages
    assert seen.links["a", "b"] == pytest.approx(20, rel=0.05)
    choice = decided(simulation, seen, "1f1b")
    assert choice.schedule.name != "1f1b"
    assert choice.is_worth(Remaining(100, 0, SECOND))
    assert choice.same_ns is not None and choice.same_ns > 1.05 * choice.best_ns
    assert choice.planned == simulation.setting  # devices are as fast as before
    text = said(choice, seen, Remaining(100, 0, SECOND))
    assert "a-b take 2" in text and "from the next checkpoint on" in text


def test_a_slow_stage_is_named_and_gives_layers_away() -> None:
    simulation = simulate(setting(), SCHEDULES["unidle"])
    seen = drift(simulation, steps_of(simulation, slow={1: 2.0}))
    assert dict(seen.stages) == {1: pytest.approx(2.0)}
    assert not seen.links
    choice = decided(simulation, seen, "unidle", (4, 4, 4))
    assert choice.cut is not None
    assert sum(choice.cut) == 12 and choice.cut[1] < 4 < choice.cut[0]
    assert choice.is_worth(Remaining(100, 0, SECOND))
    # What is planned with has the measured times, what devices are paced by has not.
    at = choice.cut[1]
    assert choice.setting.stages[1].forward_ns == pytest.approx(2 * 10 * MS * at / 4, rel=0.01)
    assert choice.planned.stages[1].forward_ns == pytest.approx(10 * MS * at / 4, rel=0.01)
    assert "stage 1 (b) takes 2.00x" in said(choice, seen, Remaining(100, 0, SECOND))


def test_layers_stay_where_their_number_is_not_known() -> None:
    simulation = simulate(setting(), SCHEDULES["unidle"])
    seen = drift(simulation, steps_of(simulation, slow={1: 2.0}))
    assert decided(simulation, seen, "unidle").cut is None


def test_layers_do_not_move_to_where_they_do_not_fit() -> None:
    stages = tuple(replace(stage, static_bytes=400_000) for stage in setting().stages)
    for room, cut in ((10**9, (5, 2, 5)), (1_000_000, (5, 2, 5)), (600_000, (4, 4, 4))):
        made = replace(setting(), stages=stages, memory_cap_bytes=room)
        simulation = simulate(made, SCHEDULES["varuna"])
        seen = drift(simulation, steps_of(simulation, slow={1: 2.5}))
        assert decided(simulation, seen, "varuna", (4, 4, 4)).cut == cut


def test_all_stages_slower_alike_change_the_times_and_nothing_else() -> None:
    """A machine that is shared: the plan for compute that is twice as long may be the one that runs."""
    simulation = simulate(setting(3, 8), SCHEDULES["zb-h1"])
    seen = drift(simulation, steps_of(simulation, slow={0: 2.0, 1: 2.0, 2: 2.0}))
    assert set(seen.stages) == {0, 1, 2}
    choice = decided(simulation, seen, "zb-h1", (4, 4, 4))
    assert choice.cut == (4, 4, 4)


def test_a_better_plan_that_wins_less_than_a_restart_takes_is_not_taken() -> None:
    simulation = simulate(setting(2, 12), SCHEDULES["1f1b"])
    seen = drift(simulation, steps_of(simulation, links=20))
    choice = decided(simulation, seen, "1f1b")
    assert not choice.is_worth(Remaining(3, 0, 60 * SECOND))
    assert "than a restart takes" in said(choice, seen, Remaining(3, 0, 60 * SECOND))


def test_what_wins_little_of_a_step_that_waits_for_other_things_is_not_taken() -> None:
    simulation = simulate(setting(2, 12), SCHEDULES["1f1b"])
    seen = drift(simulation, steps_of(simulation, links=20))
    choice = decided(simulation, seen, "1f1b")
    assert choice.same_ns is not None
    won = choice.same_ns - choice.best_ns
    assert choice.is_worth(Remaining(10**6, 15 * won, 0))
    assert not choice.is_worth(Remaining(10**6, 25 * won, 0))


def test_what_is_as_good_as_it_can_be_goes_on() -> None:
    simulation = simulate(setting(2, 12), SCHEDULES["unidle"])
    seen = drift(simulation, steps_of(simulation, links=2))
    choice = decided(simulation, seen, "unidle", (6, 6))
    assert not choice.is_worth(Remaining(1000, 0, 0))
    assert "no other plan is better by 5 %" in said(choice, seen, Remaining(1000, 0, 0))


def test_few_rows_tell_nothing() -> None:
    step = Step(1, 1, (2,))
    step.rows.append(OpRow("a/0/0", "F", 0, 0, 0, 0, 500 * MS))
    assert not drift(simulate(setting(2, 2), SCHEDULES["gpipe"]), [step])


def test_of_pipelines_that_are_not_alike_links_are_measured_and_shares_stay() -> None:
    shares = PipelineShares((8, 4), (1.0, 0.5))
    running = simulated(setting(2, 6, pipelines=2), SCHEDULES["1f1b"], shares)
    steps = []
    for number in range(2):
        step = Step(number, 1, shares.microbatches)
        for row in running.rows():
            more = 2 * 2 * MS + 19 * (row.end_ns - row.start_ns) if row.op == "send" else 0
            step.rows.append(row._replace(end_ns=row.end_ns + more))
        steps.append(step)
    seen = drift(running, steps)
    assert set(seen.links) == {("a", "b")}
    assert not seen.stages
    choice = reconsider(
        seen, first_choice(running.setting, SCHEDULES["1f1b"], (3, 3)), running, (3, 3), shares
    )
    assert choice.cut == (3, 3)
    assert choice.same_ns is not None and choice.best_ns < choice.same_ns
    assert simulated(choice.setting, choice.schedule, shares).result.iteration_ns == choice.best_ns


def meshed(stages: int = 4, microbatches: int = 8, slow: str = "", **fields: Any) -> Setting:
    """Each site linked to each other; the pair ``slow`` by a hundredth."""
    made = setting(stages, microbatches, **fields)
    names = [site.name for site in made.sites]
    links = tuple(
        WanLink(a, b, 2 * MS, 0.01 if f"{a}{b}" == slow else 1.0, None)
        for k, a in enumerate(names)
        for b in names[k + 1 :]
    )
    return replace(made, links=links)


def neighbours(choice: Replan) -> set[frozenset[str]]:
    return {frozenset((a.name, b.name)) for a, b in pairwise(choice.setting.sites)}


def test_sites_are_put_in_another_order_where_a_link_became_slow() -> None:
    simulation = simulate(meshed(), SCHEDULES["unidle"])
    seen = drift(simulation, steps_of(simulation, links=1))
    assert not seen
    slow = replace(
        drift(simulation, steps_of(simulation)), setting=meshed(slow="bc"), links={("b", "c"): 100.0}
    )
    choice = decided(simulation, slow, "unidle", (3, 3, 3, 3))
    assert frozenset("bc") not in neighbours(choice)
    assert choice.is_worth(Remaining(100, 0, SECOND))
    assert choice.best_ns == simulated(choice.setting, choice.schedule, None).result.iteration_ns
    assert "in the order" in said(choice, slow, Remaining(100, 0, SECOND))
    # Each device of the new order is one of the old ones: its site, whatever its stage.
    assert sorted(choice.names.values()) == ["a/0/0", "b/0/1", "c/0/2", "d/0/3"]
    assert all(new[0] == old[0] for new, old in choice.names.items())


def test_sites_stay_in_their_order_where_layers_are_not_alike_or_the_schedule_is_the_users() -> None:
    made = meshed()
    uneven = replace(made, stages=(*made.stages[:3], replace(made.stages[3], forward_ns=20 * MS)))
    for base, name in ((uneven, "unidle"), (made, "interleaved")):
        simulation = simulate(base, SCHEDULES[name])
        seen = replace(
            drift(simulation, []),
            setting=replace(base, links=meshed(slow="bc").links),
            links={("b", "c"): 100.0},
        )
        choice = reconsider(seen, first_choice(base, SCHEDULES[name], None), simulation, None)
        assert [site.name for site in choice.setting.sites] == list("abcd")


def test_without_a_site_the_best_order_and_schedule_of_the_others_go_on() -> None:
    whole = first_choice(meshed(slow="ac"), SCHEDULES["1f1b"], (3, 3, 3, 3))
    choice = rearranged(whole, {"b"})
    assert {site.name for site in choice.setting.sites} == set("acd")
    assert frozenset("ac") not in neighbours(choice)  # what came to be next to each other is not fast enough
    assert choice.cut == (4, 4, 4)
    assert choice.same_ns is None and choice.is_worth(Remaining(1, 0, 10**15))
    plain = simulated(choice.setting, SCHEDULES["1f1b"], None).result.iteration_ns
    assert choice.best_ns <= plain
    assert {site.name for link in choice.setting.links for site in choice.setting.sites} == set("acd")


def test_sites_that_do_not_reach_each_other_are_kept_apart() -> None:
    whole = first_choice(meshed(), SCHEDULES["unidle"], (3, 3, 3, 3))
    choice = rearranged(whole, (), {frozenset("bc"), frozenset("ad")})
    assert len(choice.setting.sites) == 4
    assert not neighbours(choice) & {frozenset("bc"), frozenset("ad")}
    chain = first_choice(setting(4), SCHEDULES["unidle"], (3, 3, 3, 3))
    with pytest.raises(CannotRun, match="cannot follow each other"):
        rearranged(chain, (), {frozenset("bc")})
    with pytest.raises(CannotRun, match="without b there is no link between a and c"):
        rearranged(chain, {"b"})
    with pytest.raises(CannotRun, match="no site is left"):
        rearranged(chain, set("abcd"))
    three = first_choice(setting(3), SCHEDULES["unidle"], (4, 4, 4))
    with pytest.raises(CannotRun, match="without b there is no link between a and c"):
        rearranged(three, {"b"})  # no link is left at all, which is not as if they were free


def test_what_is_not_to_be_planned_anew_keeps_its_order_and_schedule_where_that_goes() -> None:
    whole = first_choice(meshed(slow="ac"), SCHEDULES["1f1b"], (3, 3, 3, 3))
    choice = rearranged(whole, {"b"}, same=True)
    assert [site.name for site in choice.setting.sites] == list("acd")
    assert choice.schedule.name == "1f1b"
    choice = rearranged(whole, {"b"}, {frozenset("ac")}, same=True)
    assert frozenset("ac") not in neighbours(choice)
    # The first order is simulated however many others have a lesser bound, as others may not fit into memory.
    tight = replace(meshed(5), memory_cap_bytes=10**6)
    assert rearranged(first_choice(tight, SCHEDULES["1f1b"], (3,) * 5), {"c"}).best_ns > 0


@given(st.integers(2, 9), st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20))
def test_orders_hold_each_site_once_and_only_ways_that_are_there(
    count: int, gaps: set[tuple[int, int]]
) -> None:
    names = "abcdefghi"[:count]
    broken = {frozenset((names[i % count], names[j % count])) for i, j in gaps}
    found = list(orders(names, lambda a, b: frozenset((a, b)) not in broken))
    assert len(set(found)) == len(found)
    for order in found:
        assert sorted(order) == list(names)
        assert not any(frozenset(pair) in broken for pair in pairwise(order))
    if not any(frozenset(pair) in broken for pair in pairwise(names)):
        assert found[0] == tuple(names)
    if count <= 5:
        assert len(found) == sum(
            not any(frozenset(pair) in broken for pair in pairwise(each)) for each in permutations(names)
        )


def test_an_order_is_found_where_only_far_ones_hold() -> None:
    ring = [frozenset((k, (k + 5) % 12)) for k in range(12)]  # 0 5 10 3 8 1 6 11 4 9 2 7
    names = [f"{k:x}" for k in range(12)]
    found = list(orders(names, lambda a, b: frozenset((int(a, 16), int(b, 16))) in ring))
    assert found and all(frozenset((int(a, 16), int(b, 16))) in ring for a, b in pairwise(found[0]))


@pytest.mark.parametrize("measured", [True, False])
def test_stages_with_other_layers_carry_the_largest_measured_cut(measured: bool) -> None:
    sizes = (None, 300, 200) if measured else (None, None, None)
    stages = tuple(replace(s, input_bytes=size) for s, size in zip(setting().stages, sizes, strict=True))
    made = moved(replace(setting(), stages=stages), (4, 4, 4), (5, 2, 5))
    largest = replace(setting(), stages=stages).largest_cut_bytes
    assert [stage.input_bytes for stage in made.stages] == [largest if measured else None] * 3
    assert [stage.forward_ns for stage in made.stages] == [10 * MS * n // 4 for n in (5, 2, 5)]


def test_a_transfer_without_a_receiver_goes_to_the_next_stage_or_back() -> None:
    record = {"op": "send", "start_ns": 5, "end_ns": 9, "microbatch": 1}
    rows = [row_of(setting(), "b/0/1", {**record, "of": of}, 100) for of in "FB"]
    assert [row.device_or_link for row in rows] == ["b/0/1>c/0/2", "b/0/1>a/0/0"]
    assert {(row.stage, row.start_ns, row.end_ns) for row in rows} == {(1, 105, 109)}

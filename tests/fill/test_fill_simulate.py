"""Training with prefill in its waits: nothing is counted twice, and training does not notice."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fill.worlds import MS, filling, model, prompts, requests, training
from unidle.fill.simulate.accounts import DeviceAccounts, SpentRow
from unidle.fill.simulate.arrivals import PromptProcess, TracedPrompt, arrivals
from unidle.fill.simulate.dedicated import served_alone
from unidle.fill.simulate.events import Events
from unidle.fill.simulate.planned import fill_devices, planned_waits
from unidle.fill.simulate.rules import POLICIES
from unidle.fill.simulate.run import FillOutcome, FillSetting, capacity_ns, filled
from unidle.fill.simulate.training import TrainingRun, Unfilled
from unidle.span.simulate.ledger import causes
from unidle.span.simulate.schedules import SCHEDULES

BUSY = PromptProcess("poisson", 150.0, 16, 2048, slo_ttft_ms=1500)


def busy(seconds: float = 2.0, **more: object) -> FillSetting:
    return filling(seconds, requests=arrivals(BUSY, seconds, np.random.default_rng(0)), **more)  # type: ignore[arg-type]


def played(schedule: str, iterations: int) -> tuple[TrainingRun, DeviceAccounts]:
    simulation = training(schedule)
    events, accounts = Events(), DeviceAccounts(simulation.setting.devices, rows=True)
    run = TrainingRun(simulation, 0.0, 0, events, accounts, Unfilled())
    run.start()
    events.run(lambda: len(run.begins_ns) <= iterations)
    return run, accounts


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_is_played_as_it_was_planned(schedule: str) -> None:
    run, accounts = played(schedule, 3)
    length, setting = training(schedule).result.iteration_ns, training(schedule).setting
    assert run.begins_ns == [k * length for k in range(4)]
    planned = causes(training(schedule))
    computed = sum(planned.get(cause, 0) for cause in ("forward", "backward", "weight gradient"))
    assert accounts.spent["computation"] == 3 * computed
    assert accounts.spent["recompute"] == 3 * planned.get("recompute", 0)
    assert accounts.spent["all-reduce"] == 3 * sum(setting.reduce_ns(s) for s in range(6)) * setting.pipelines


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_planned_waits_are_all_time_in_which_a_device_does_nothing(schedule: str) -> None:
    found, simulation = planned_waits(training(schedule)), training(schedule)
    _, accounts = played(schedule, 3)
    done = sum(accounts.spent[cause] for cause in ("computation", "recompute", "all-reduce")) // 3
    whole = found.iteration_ns * simulation.setting.devices
    assert sum(each.length_ns for each in found.waits) == whole - done
    assert found.iteration_ns == simulation.result.iteration_ns


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "atlas", "unidle"])
def test_memory_in_a_wait_is_never_less_than_at_the_fullest_moment(schedule: str) -> None:
    least = {each.number: each.resident_bytes for each in fill_devices(training(schedule))}
    waits = planned_waits(training(schedule)).waits
    assert all(each.free_bytes >= least[each.device] for each in waits)
    assert any(each.free_bytes > least[each.device] for each in waits)


def overlaps(rows: tuple[SpentRow, ...]) -> list[tuple[SpentRow, SpentRow]]:
    by_device = defaultdict(list)
    for row in rows:
        by_device[row.device].append(row)
    found = []
    for own in by_device.values():
        own.sort(key=lambda row: row.start_ns)
        found += [(a, b) for a, b in itertools.pairwise(own) if b.start_ns < a.end_ns]
    return found


def check(setting: FillSetting, found: FillOutcome) -> None:
    """What holds for every outcome, whatever the jitter."""
    devices = setting.simulation.setting.devices
    assert sum(found.spent.values()) == devices * found.end_ns
    assert sum(found.unfilled_spent.values()) == devices * found.unfilled_end_ns
    assert overlaps(found.rows) == []
    assert found.accepted + found.spilled + found.rejected == len(setting.requests)
    by_op = defaultdict(int)
    for row in found.rows:
        by_op[row.op] += min(row.end_ns, found.end_ns) - row.start_ns
    assert by_op["fill"] == found.spent["prefill"]
    assert by_op["discarded"] == found.spent["discarded prefill"]
    assert by_op["allreduce"] == found.spent["all-reduce"]
    assert sum(by_op[op] for op in "FBW") == found.spent["computation"]
    assert len(found.ttft_ns) == found.accepted


@settings(max_examples=25)
@given(prompts, st.integers(1, 4), st.sampled_from(["gpipe", "zb-h1", "atlas-keep", "unidle"]))
def test_without_jitter_training_is_never_delayed_and_deadlines_are_kept(
    asked: list[tuple[int, int]], pp: int, schedule: str
) -> None:
    wanted = requests([gap for gap, _ in asked], [tokens for _, tokens in asked])
    setting = filling(1.0, pp, requests=wanted, simulation=training(schedule))
    found = filled(setting, POLICIES["unidle"], rows=True)
    check(setting, found)
    assert found.end_ns == found.unfilled_end_ns
    assert found.slowdown_pct == 0
    assert (found.late, found.spent["discarded prefill"], found.forecast.early) == (0, 0, 0)
    for cause in ("computation", "recompute", "all-reduce"):
        assert found.spent[cause] == found.unfilled_spent[cause]


@settings(max_examples=15)
@given(prompts, st.integers(1, 40), st.sampled_from(sorted(POLICIES)), st.integers(0, 5))
def test_with_jitter_every_nanosecond_still_has_one_cause(
    asked: list[tuple[int, int]], jitter: int, policy: str, seed: int
) -> None:
    wanted = requests([gap for gap, _ in asked], [tokens for _, tokens in asked])
    setting = filling(1.0, requests=wanted, jitter=jitter / 100, seed=seed)
    found = filled(setting, POLICIES[policy], rows=True)
    check(setting, found)
    assert found.spent["computation"] == found.unfilled_spent["computation"]
    assert found.end_ns >= found.unfilled_end_ns


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_timeline_of_training_alone_is_that_of_the_filled_training(policy: str) -> None:
    setting = busy()
    ours = filled(setting, POLICIES[policy], rows=True)
    alone = filled(replace(setting, requests=()), POLICIES[policy], rows=True)
    assert [row for row in ours.rows if row.op not in ("fill", "discarded")] == list(alone.rows)
    assert ours.spent["prefill"] > 0


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "atlas", "unidle"])
def test_links_are_used_as_planned(schedule: str) -> None:
    simulation = training(schedule)
    found = filled(filling(0.1, simulation=simulation), POLICIES["unidle"], rows=True)
    planned = [row for row in simulation.rows() if row.op in ("send", "scatter", "gather")]
    assert sorted(row[:2] + row[4:] for row in planned) == sorted(
        (row.link, row.op, row.unit, row.start_ns, row.end_ns, row.chunk, row.size_bytes, row.of)
        for row in found.links
    )


def test_keys_and_values_leave_every_device_of_the_pipeline_after_the_first_token() -> None:
    setting = busy()
    found = filled(setting, POLICIES["unidle"], rows=True)
    last = defaultdict(int)
    for row in found.rows:
        if row.op == "fill":
            last[row.unit] = max(last[row.unit], row.end_ns)
    gone = [row for row in found.links if row.op == "handoff"]
    assert gone and len({(row.link, row.unit) for row in gone}) == len(gone)
    for row in gone:
        tokens = setting.requests[row.unit].tokens
        assert (row.start_ns, row.size_bytes) == (last[row.unit], setting.model.kv_bytes(tokens))
        assert row.end_ns == row.start_ns + setting.model.handoff_ns(tokens)


def test_pieces_end_before_their_wait_does() -> None:
    found = filled(busy(), POLICIES["unidle"], rows=True)
    period = found.end_ns // found.iterations
    waits = defaultdict(list)
    for each in planned_waits(training()).waits:
        waits[each.device].append((each.offset_ns, each.offset_ns + each.length_ns))
    for each in planned_waits(training()).first:
        waits[each.device].append((-period, each.length_ns))
    for row in (row for row in found.rows if row.op == "fill"):
        spots = [(row.start_ns - k * period, row.end_ns - k * period) for k in range(found.iterations + 1)]
        assert any(a <= start and end <= b for start, end in spots for a, b in waits[row.device])


def test_the_same_seed_is_the_same_outcome_and_another_is_not() -> None:
    one, two = (filled(busy(jitter=0.2, seed=1), POLICIES["unidle"], rows=True) for _ in range(2))
    assert one == two
    assert filled(busy(jitter=0.2, seed=2), POLICIES["unidle"]).end_ns != one.end_ns


def test_a_wrong_forecast_costs_the_filler_and_training_no_more_than_giving_way() -> None:
    """Each early end can hold training up by what it takes to give way, and by nothing else."""
    setting = busy(4.0, jitter=0.3, seed=4)
    found = filled(setting, POLICIES["unidle"], rows=True)
    way = POLICIES["unidle"].yields.gives_way_ns
    assert way is not None
    ends = [row for row in found.rows if row.op == "discarded"]
    assert ends and found.forecast.early
    assert found.end_ns - found.unfilled_end_ns <= way * len(ends)
    assert found.spent["discarded prefill"] == sum(
        min(row.end_ns, found.end_ns) - row.start_ns for row in ends
    )


def test_a_piece_that_runs_to_its_end_holds_training_up_for_longer() -> None:
    ours, theirs = (filled(busy(4.0, jitter=0.2, seed=3), POLICIES[name]) for name in ("unidle", "freeride"))
    assert ours.slowdown_pct < theirs.slowdown_pct
    assert theirs.spent["discarded prefill"] == 0


def test_whole_prompts_leave_more_of_the_bubble() -> None:
    ours, theirs = (filled(busy(), POLICIES[name]) for name in ("unidle", "whole"))
    assert ours.utilisation_after > theirs.utilisation_after > ours.utilisation_before


def test_what_no_wait_takes_goes_to_dedicated_devices_and_else_is_rejected() -> None:
    crowd = replace(BUSY, rate_per_s=600.0, least=1024)
    setting = filling(requests=arrivals(crowd, 2.0, np.random.default_rng(0)))
    none, some = (filled(replace(setting, dedicated_gpus=gpus), POLICIES["unidle"]) for gpus in (0, 4))
    assert none.spilled == 0 < none.rejected
    assert some.spilled > 0
    assert some.rejected < none.rejected
    assert len(some.dedicated_ttft_ns) == some.spilled
    assert max(some.dedicated_ttft_ns) <= 1500 * MS
    assert sum(some.reasons.values()) == some.spilled + some.rejected


def test_a_model_that_does_not_fit_takes_no_bubbles() -> None:
    large = replace(model(), layers=4000)
    found = filled(busy(model=large), POLICIES["unidle"])
    assert found.pipelines == ()
    assert (found.accepted, found.utilisation_after) == (0, found.utilisation_before)


def test_dedicated_devices_serve_at_once_and_then_in_turn() -> None:
    one = model(1)
    alone = served_alone(one, 1, requests([0, 0], [512, 512], slo_ms=None))
    work = 8 * one.layer_ns(0, 512)
    assert alone == [work, 2 * work]
    assert served_alone(one, 0, requests([0], [512])) == []


def test_capacity_is_the_mean_number_of_idle_devices() -> None:
    setting = filling()
    planned = planned_waits(training())
    idle = sum(each.length_ns for each in planned.waits) / planned.iteration_ns
    assert capacity_ns(setting, planned) == pytest.approx(idle)
    none = replace(setting, model=replace(model(), layers=4000))
    assert capacity_ns(none, planned) == 0


def test_prompts_follow_their_process() -> None:
    chance = np.random.default_rng(0)
    steady = arrivals(PromptProcess("poisson", 100.0, 64, 4096), 50.0, chance)
    assert 4500 < len(steady) < 5500
    assert {each.tokens for each in steady} <= set(range(64, 4097))
    assert (
        450 < sorted(each.tokens for each in steady)[len(steady) // 2] < 570
    )  # the middle of the logarithm is 512
    together = arrivals(PromptProcess("burst", 100.0, lengths=(5, 7), burst=10), 20.0, chance)
    counts = [
        sum(each.arrival_ns == moment for each in together)
        for moment in {each.arrival_ns for each in together}
    ]
    assert set(counts) == {10} and {each.tokens for each in together} == {5, 7}
    traced = (TracedPrompt(2.0, 5, 1, 100.0), TracedPrompt(1.0, 6), TracedPrompt(99.0, 7))
    found = arrivals(PromptProcess("trace", traced=traced, slo_ttft_ms=10.0), 50.0, chance)
    assert [(each.arrival_ns, each.tokens, each.deadline_ns, each.priority) for each in found] == [
        (10**9, 6, 10**9 + 10 * MS, 0), (2 * 10**9, 5, 2 * 10**9 + 100 * MS, 1),
    ]  # fmt: skip


def test_time_cannot_be_spent_twice() -> None:
    accounts = DeviceAccounts(1, rows=False)
    accounts.spend(0, 10, "waits")
    with pytest.raises(AssertionError, match="twice"):
        accounts.spend(0, 9, "waits")

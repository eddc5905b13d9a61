"""Admission: in windows, in memory, in time; and what happens when windows change and requests go."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fill.worlds import MS, model, prompts, requests
from unidle.fill.model.prefill import InferenceModel, chunks_of
from unidle.fill.policy.controller import FillController, PieceRules
from unidle.fill.policy.forecast import ForecastRules, WaitForecast, quantile_for
from unidle.fill.policy.pipelines import FillDevice, InferencePipeline, pipelines_of
from unidle.fill.policy.requests import Accepted, NotPlaced, PrefillRequest
from unidle.fill.policy.windows import UNLIMITED, FillWindow

LONG = FillWindow(0, 0, 10_000 * MS, UNLIMITED)


def controller(
    windows: dict[int, list[tuple[int, int]]], pp: int = 1, room: int = UNLIMITED, free: int = UNLIMITED,
    rules: PieceRules | None = None,
) -> FillController:  # fmt: skip
    """Devices in pipelines of ``pp``; windows in milliseconds."""
    devices = sorted(windows)
    pipelines = [InferencePipeline(tuple(devices[k : k + pp]), room) for k in range(0, len(devices), pp)]
    made = FillController(pipelines, model(pp), rules)
    for device, own in windows.items():
        made.windows(device, [FillWindow(device, a * MS, b * MS, free) for a, b in own])
    return made


@given(st.integers(1, 5000), st.integers(1, 1000))
def test_chunks_of_a_prompt_cost_what_the_whole_prompt_costs(tokens: int, most: int) -> None:
    whole, parts = model().layer_ns(0, tokens), chunks_of(model(), tokens, most)
    assert sum(each.tokens for each in parts) == tokens
    assert max(each.tokens for each in parts) <= most
    assert abs(sum(each.layer_ns for each in parts) - whole) <= len(parts)


def test_time_and_bytes_follow_from_the_shape() -> None:
    small = InferenceModel(3, 64, 2, 0.001, kv_share=0.5, local_gbps=8)
    assert small.layer_ns(0, 100) == 24 * 100 * 64**2 + 4 * 100**2 * 64
    assert small.stage_layers == (2, 1)
    assert small.weight_bytes() == 2 * 12 * 64**2 * 2
    assert small.kv_bytes(100) == 2 * 2 * 100 * 64 * 0.5 * 2
    assert small.handoff_ns(100) == small.kv_bytes(100)
    assert small.hop_ns(100) == 100 * 64 * 2


@given(prompts, st.integers(1, 4), st.data())
def test_pieces_are_in_windows_and_no_device_has_two_at_once(
    asked: list[tuple[int, int]], pp: int, data: st.DataObject
) -> None:
    windows = dict[int, list[tuple[int, int]]]()
    for device in range(2 * pp):
        now, own = 0, []
        for gap, length in data.draw(
            st.lists(st.tuples(st.integers(1, 60), st.integers(1, 90)), min_size=1, max_size=20)
        ):
            own.append((now + gap, now + gap + length))
            now += gap + length
        windows[device] = own
    made = controller(windows, pp)
    busy = dict[int, list[tuple[int, int]]]()
    for each in requests([gap for gap, _ in asked], [tokens for _, tokens in asked]):
        found = made.decide(each, each.arrival_ns)
        if isinstance(found, NotPlaced):
            assert found.reason
            continue
        assert found.first_token_ns <= (each.deadline_ns or 0)
        assert min(part.start_ns for part in found.booked) >= each.arrival_ns
        _in_order(found)
        devices = made.pipelines[found.pipeline].devices
        for part in found.booked:
            busy.setdefault(devices[part.stage], []).append((part.start_ns, part.end_ns))
    for device, parts in busy.items():
        parts.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(parts))
        for start, end in parts:
            assert any(a * MS <= start and end <= b * MS for a, b in windows[device])


def _in_order(found: Accepted) -> None:
    """A chunk is on a stage after it was on the one before, and after the chunk before it."""
    first, last = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    for part in found.booked:
        key = (part.stage, part.chunk)
        first.setdefault(key, part.start_ns)
        last[key] = part.end_ns
    for (stage, chunk), start in first.items():
        assert start >= last.get((stage - 1, chunk), 0)
        assert start >= last.get((stage, chunk - 1), 0)
    assert found.first_token_ns == max(last.values())


def test_the_pipeline_that_ends_first_takes_a_prompt() -> None:
    made = controller({0: [(0, 1), (50, 900)], 1: [(30, 900)], 2: [(40, 900)]})
    found = made.decide(PrefillRequest(0, 0, 2000), 0)
    assert isinstance(found, Accepted)
    assert found.pipeline == 1


def test_a_piece_that_does_not_fit_is_not_started() -> None:
    whole = PieceRules(None, whole_stage=True)
    work = model(1).layer_ns(0, 2000) * 8 // MS
    made = controller({0: [(0, work), (2 * work, 4 * work)]}, rules=whole)
    found = made.decide(PrefillRequest(0, 0, 2000), 0)
    assert isinstance(found, Accepted)
    assert found.begin_ns == 2 * work * MS
    cut = controller({0: [(0, work), (2 * work, 4 * work)]}).decide(PrefillRequest(0, 0, 2000), 0)
    assert isinstance(cut, Accepted)
    assert cut.begin_ns == 0


def test_a_prompt_that_would_be_late_is_not_placed_and_leaves_no_trace() -> None:
    made = controller({0: [(0, 10_000)]})
    late = made.decide(PrefillRequest(0, 0, 2000, deadline_ns=1), 0)
    assert isinstance(late, NotPlaced)
    assert late.reason == "its first token would be late"
    found = made.decide(PrefillRequest(1, 0, 2000), 0)
    assert isinstance(found, Accepted)
    assert found.begin_ns == 0


def test_memory_of_all_prompts_at_once_stays_within_what_training_leaves() -> None:
    needs = model(1).kv_bytes(1000) + model(1).workspace_bytes(500)
    made = controller({0: [(0, 10_000)]}, room=2 * needs)
    ends = list[int]()
    for number in range(8):
        found = made.decide(PrefillRequest(number, 0, 1000), 0)
        assert isinstance(found, Accepted)
        ends.append(found.release_ns)
        if number >= 2:
            assert found.begin_ns >= ends[number - 2]
        assert made.held_bytes(0, found.begin_ns) <= (number + 1) * needs
    assert ends == sorted(ends)


@given(prompts, st.integers(1, 3), st.integers(1, 3))
def test_keys_and_values_never_need_more_than_the_budget(
    asked: list[tuple[int, int]], pp: int, many: int
) -> None:
    room = many * model(pp).kv_bytes(1200)
    made = controller({device: [(0, 400), (600, 5000)] for device in range(2 * pp)}, pp, room)
    held = list[tuple[int, int, int, int]]()
    for each in requests([gap for gap, _ in asked], [tokens for _, tokens in asked], slo_ms=None):
        found = made.decide(each, each.arrival_ns)
        if isinstance(found, Accepted):
            held.append((found.pipeline, found.begin_ns, found.release_ns, model(pp).kv_bytes(each.tokens)))
    for pipeline, moment, _, size in held:
        there = [own for other, begin, end, own in held if other == pipeline and begin <= moment < end]
        assert sum(there) <= room or there == [size]


def test_keys_and_values_that_only_a_window_can_hold_come_and_go_in_it() -> None:
    one = model(1)
    needs = one.kv_bytes(1000) + one.workspace_bytes(500)
    work = 8 * one.layer_ns(0, 1000) // MS + 5
    windows = {0: [(10, 10 + work // 2), (500, 500 + 2 * work)]}
    enough = controller(windows, room=needs - 1, free=needs + one.weight_bytes())
    found = enough.decide(PrefillRequest(0, 500 * MS, 1000), 500 * MS)
    assert isinstance(found, Accepted)
    assert found.release_ns <= (500 + 2 * work) * MS
    across = controller(windows, room=needs - 1, free=needs + one.weight_bytes()).decide(
        PrefillRequest(0, 0, 1000), 0
    )
    assert isinstance(across, NotPlaced)
    little = controller(windows, room=needs - 1, free=needs + one.weight_bytes() - 1)
    refused = little.decide(PrefillRequest(0, 500 * MS, 1000), 500 * MS)
    assert isinstance(refused, NotPlaced)
    assert "memory" in refused.reason


def test_a_higher_priority_overtakes_what_has_not_begun_and_keeps_its_deadline() -> None:
    made = controller({0: [(0, 10_000)]})
    slow = [made.decide(PrefillRequest(n, 0, 3000, 9_000 * MS), 0) for n in range(5)]
    assert all(isinstance(each, Accepted) for each in slow)
    plain = made.decide(PrefillRequest(7, 0, 3000, slow[1].first_token_ns), 0)  # type: ignore[union-attr]
    assert isinstance(plain, NotPlaced)
    urgent = made.decide(PrefillRequest(8, 0, 3000, slow[1].first_token_ns, priority=1), 0)  # type: ignore[union-attr]
    assert isinstance(urgent, Accepted)
    assert urgent.first_token_ns <= slow[1].first_token_ns  # type: ignore[union-attr]
    assert next(each.request.number for each in made.queue(0)) == 8


def test_nothing_overtakes_where_another_would_then_be_late() -> None:
    made = controller({0: [(0, 10_000)]})
    first = made.decide(PrefillRequest(0, 0, 3000), 0)
    assert isinstance(first, Accepted)
    tight = controller({0: [(0, 10_000)]})
    assert isinstance(tight.decide(PrefillRequest(0, 0, 3000, first.first_token_ns), 0), Accepted)
    refused = tight.decide(PrefillRequest(1, 0, 3000, first.first_token_ns, priority=5), 0)
    assert isinstance(refused, NotPlaced)
    assert [each.request.number for each in tight.queue(0)] == [0]
    assert tight.queue(0)[0].first_token_ns == first.first_token_ns


def test_what_is_behind_a_cancelled_prompt_moves_up() -> None:
    made = controller({0: [(0, 10_000)]})
    found = [made.decide(PrefillRequest(n, 0, 2000), 0) for n in range(3)]
    assert made.cancel(1, 0) is not None
    assert made.cancel(1, 0) is None
    rest = made.queue(0)
    assert [each.request.number for each in rest] == [0, 2]
    assert rest[1].first_token_ns == found[1].first_token_ns  # type: ignore[union-attr]
    again = made.decide(PrefillRequest(3, 0, 2000), 0)
    assert isinstance(again, Accepted)
    assert again.first_token_ns == found[2].first_token_ns  # type: ignore[union-attr]


def test_a_window_that_ends_early_moves_what_was_placed_in_it() -> None:
    made = controller({0: [(0, 1000), (2000, 5000)]})
    found = made.decide(PrefillRequest(0, 0, 3000, 1500 * MS), 0)
    assert isinstance(found, Accepted)
    made.windows(0, [FillWindow(0, 2000 * MS, 5000 * MS)])
    late = made.replan(0, 0)
    assert [each.number for each in late] == [0]
    assert made.queue(0)[0].begin_ns == 2000 * MS


def test_pieces_that_were_run_are_not_planned_again() -> None:
    made = controller({0: [(0, 1000)], 1: [(0, 1000)]}, pp=2)
    assert isinstance(made.decide(PrefillRequest(0, 0, 400), 0), Accepted)
    assert made.next_piece(0, 1) is None
    piece = made.next_piece(0, 0)
    assert piece is not None
    assert not made.ran(0, piece, 0, 1, piece.piece_ns)
    rest = made.next_piece(0, 0)
    assert rest is not None and rest.left == piece.left - 1
    assert not made.ran(0, rest, 0, rest.left, 4 * piece.piece_ns)
    there = made.next_piece(0, 1)
    assert there is not None
    assert there.ready_ns == 4 * piece.piece_ns + there.item.chunks[0].hop_ns
    assert made.ran(0, there, 1, there.left, 9 * piece.piece_ns)
    assert made.queue(0) == ()
    assert made.held_bytes(0, 9 * piece.piece_ns) > 0
    assert made.held_bytes(0, 9 * piece.piece_ns + there.item.handoff_ns) == 0


def test_inference_pipelines_stay_inside_a_site_and_leave_out_full_devices() -> None:
    devices = [FillDevice(n, n // 6, n // 3, 100 if n != 4 else 5) for n in range(12)]
    found = pipelines_of(devices, 2, 10)
    assert [each.devices for each in found] == [(0, 1), (3, 5), (6, 7), (9, 10), (8, 11)]
    assert {each.resident_bytes for each in found} == {90}
    assert pipelines_of(devices, 7, 10) == ()


def test_a_controller_without_pipelines_gives_the_reason() -> None:
    found = FillController([], model()).decide(PrefillRequest(0, 0, 10), 0)
    assert isinstance(found, NotPlaced)
    assert "memory" in found.reason


def test_steady_waits_are_forecast_exactly_and_leave_no_guard_band() -> None:
    made = WaitForecast(ForecastRules())
    for _ in range(30):
        made.observe(0, 1, 7, 50 * MS)
    assert made.length_ns(0, 1) == 50 * MS
    assert (made.guard_ns(0), made.error.early, made.error.mean_ns) == (0, 0, 0.0)


def test_the_forecast_is_the_quantile_of_the_last_twenty_waits() -> None:
    made = WaitForecast(ForecastRules(0.5, least_ns=0, guarded=False))
    for length in range(100):
        made.observe(0, 1, 0, length)
    assert made.length_ns(0, 1) == 89
    assert made.length_ns(0, 2) == 0
    assert made.error.waits > 0


def test_short_waits_are_not_forecast() -> None:
    made = WaitForecast(ForecastRules())
    made.seed(0, 1, 0, 14 * MS)
    made.seed(0, 2, 0, 16 * MS)
    assert (made.length_ns(0, 1), made.length_ns(0, 2)) == (0, 16 * MS)


@given(st.lists(st.integers(20 * MS, 200 * MS), min_size=40, max_size=200))
def test_a_guard_band_never_makes_more_waits_end_early(lengths: list[int]) -> None:
    with_guard, without = (WaitForecast(ForecastRules(0.5, 0, guarded=guarded)) for guarded in (True, False))
    for length in lengths:
        for each in (with_guard, without):
            each.observe(0, 0, 0, length)
        assert with_guard.length_ns(0, 0) <= without.length_ns(0, 0)
    assert with_guard.error.early <= without.error.early


def test_a_profile_made_before_the_run_does_not_follow_what_is_observed() -> None:
    made = WaitForecast(ForecastRules(learned=False, guarded=False))
    made.seed(0, 1, 0, 50 * MS)
    for _ in range(5):
        made.observe(0, 1, 0, 30 * MS)
    assert made.length_ns(0, 1) == 50 * MS
    assert made.error.early == 5


def test_what_holds_training_up_for_long_is_forecast_by_the_lower_tail() -> None:
    assert (quantile_for(2 * MS), quantile_for(10 * MS)) == (0.5, 0.1)

"""Unequal pipelines share a batch by their speed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from span.reading import pipelines_from_mapping
from unidle.errors import BadInput
from unidle.span.simulate.iteration import ScheduleResult, Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES
from unidle.span.simulate.uneven import shares, simulate_groups


def ways(batch: int, pipelines: int) -> Iterator[tuple[int, ...]]:
    if pipelines == 1:
        yield (batch,)
        return
    for first in range(1, batch - pipelines + 2):
        for rest in ways(batch - first, pipelines - 1):
            yield (first, *rest)


@given(
    st.lists(st.sampled_from([0.01, 0.3, 1.0, 1.5, 2.0, 7.0, 100.0]), min_size=1, max_size=4),
    st.integers(0, 9),
)
def test_no_other_way_lets_the_slowest_pipeline_end_sooner(speeds: list[float], more: int) -> None:
    batch = len(speeds) + more

    def ends(way: tuple[int, ...]) -> float:
        return max(count / speed for count, speed in zip(way, speeds, strict=True))

    found = shares(speeds, batch)
    assert sum(found) == batch and min(found) >= 1
    assert ends(found) == min(map(ends, ways(batch, len(speeds))))


def test_shares_follow_the_speeds() -> None:
    assert shares([2, 1], 12) == (8, 4)
    assert shares([1, 1, 1], 7) == (3, 2, 2)
    assert shares([1000, 1], 2) == (1, 1)
    assert shares([3, 1] * 500, 4_000_000)[:2] == (6000, 2000)


def test_what_cannot_be_shared_is_refused() -> None:
    for speeds, batch in (([], 3), ([1, 0], 3), ([1, 1], 1)):
        with pytest.raises(BadInput):
            shares(speeds, batch)


TIMES = {"forward": 200, "backward": 200, "weight": 200}
FILE = {"stages": 3, "microbatches": 8, "pipelines": 4, "cell": 2, "stage_ns": TIMES}


def simulated(name: str = "unidle", **fields: Any) -> tuple[ScheduleResult, tuple[Simulation, ...]]:
    whole, groups = pipelines_from_mapping({**FILE, **fields})
    return simulate_groups(whole, groups, SCHEDULES[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_pipelines_that_are_alike_take_what_they_take_without_a_list(name: str) -> None:
    whole, groups = pipelines_from_mapping(FILE)
    assert groups == ()
    told, _ = simulated(name, microbatches=[8, 8, 8, 8])
    assert replace(told, chosen="") == replace(simulate(whole, SCHEDULES[name]).result, chosen="")


def test_layers_without_weights_take_no_time_for_them_at_any_speed() -> None:
    times = {"forward_ns": 200, "backward_ns": 200, "kept_bytes": 1, "input_bytes": 1}
    layers = [times | {"weight_ns": ns} for ns in (0, 200, 0)]
    file = {
        "stages": 3,
        "microbatches": 8,
        "pipelines": 4,
        "cell": 2,
        "layers": layers,
        "pipeline_speeds": [1, 1, 0.5, 0.5],
    }
    _, groups = pipelines_from_mapping(file)
    assert [[stage.weight_ns for stage in group.setting.stages] for group in groups] == [
        [0, 200, 0],
        [0, 400, 0],
    ]


def test_the_slower_half_gets_half_of_the_microbatches_and_all_end_sooner() -> None:
    speeds = [1, 1, 0.5, 0.5]
    by_speed, parts = simulated("zb-h1", pipeline_speeds=speeds)
    assert [each.setting.microbatches for each in parts] == [11, 5]
    even, _ = simulated("zb-h1", microbatches=[8, 8, 8, 8], pipeline_speeds=speeds)
    assert by_speed.iteration_ns < even.iteration_ns
    assert max(each.result.iteration_ns for each in parts) == by_speed.iteration_ns >= by_speed.lower_bound_ns
    assert by_speed.utilisation > even.utilisation
    assert parts[1].setting.stages[0].forward_ns == 400


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"microbatches": [8, 4]}, "microbatches: gives 2 of 4 pipelines"),
        ({"microbatches": [8, 4, 0, 1]}, "microbatches"),
        ({"pipeline_speeds": [1, 2]}, "pipeline_speeds: gives 2 of 4 pipelines"),
        ({"pipeline_speeds": [1, 2, 0, 1]}, "pipeline_speeds"),
        ({"microbatches": [8, 8, 8, 4]}, "cell: does not divide the 3 pipelines with 8 microbatches"),
    ],
)
def test_what_does_not_fit_is_one_error(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        pipelines_from_mapping({**FILE, **fields})
    assert words in str(refused.value) and refused.value.remedy


def test_the_command_shows_the_groups_and_refuses_what_it_cannot_draw(tmp_path: Path) -> None:
    file = tmp_path / "span.json"
    file.write_text(json.dumps({**FILE, "microbatches": [8, 8, 4, 4]}))
    command = [sys.executable, "-m", "unidle", "span", "simulate", str(file), "--schedule", "zb-h1"]
    told = json.loads(
        subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=120).stdout
    )
    assert [group["microbatches"] for group in told["zb-h1"]["groups"]] == [8, 4]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "2 pipelines at 1 times the speed: 4 microbatches each" in shown
    refused = subprocess.run(
        [*command, "--jitter", "5"], capture_output=True, text=True, check=False, timeout=120
    )
    assert refused.returncode == 2 and "--jitter: needs equal pipelines" in refused.stderr
    planned = [sys.executable, "-m", "unidle", "span", "plan", str(file)]
    assert subprocess.run(planned, capture_output=True, check=False, timeout=120).returncode == 2

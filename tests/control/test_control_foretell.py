"""Speed and cost, said when a job is placed and after its first steps, and what came true."""

from __future__ import annotations

import pytest

from unidle.control.forecast import Forecaster
from unidle.control.queries.describe import explain
from unidle.control.queries.predictions import by_model, scores, spec_of
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.protocol import StartGang
from unidle.engine.sim.workload import S, SimJob
from unidle.errors import BadInput
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Restart, Select, Where
from unidle.place.scheduler import Scheduler
from unidle.predict.outcome import Checked, checked
from unidle.store.memory import MemoryStore
from unidle.view.fold import fold
from unidle.view.snapshot import decode, encode
from unidle.view.state import View

PRICES = {"H100": 3.6, "A100": 1.8}  # 0.001 and 0.0005 a second
STEP_NS = {"H100": S // 2, "A100": S}


def on(model: str) -> Where:
    return Where(models=Select(include=(model,)))


def train(**more: object) -> JobSpec:
    return JobSpec(("x",), **{"user": "ann", "name": "train", "ranks": 2, "device": "gpu", **more})  # type: ignore[arg-type]


def there(prices: dict[str, float] | None = None) -> Fleet:
    nodes = tuple(
        Node(model, "", tuple(Device(f"{model}/{k}", model, k, "gpu", model) for k in range(2)))
        for model in STEP_NS
    )
    return Fleet(nodes=nodes, prices_per_device_hour=PRICES if prices is None else prices)


def told(
    *jobs: tuple[int, JobSpec, int], fleet: Fleet | None = None, start_ns: int = 0, **more: object
) -> View:
    """Jobs as (arrival in s, specification, steps), each with a step time by the model of its node."""
    arrivals = [Arrival(1 + at * S, f"j{k}", spec) for k, (at, spec, _) in enumerate(jobs)]
    steps = {f"j{k}": count for k, (_, _, count) in enumerate(jobs)}

    def workload(command: StartGang) -> SimJob:
        step_ns = STEP_NS[command.places[0].node]
        return SimJob(steps[command.job] * step_ns, start_ns, step_ns=step_ns, **more)  # type: ignore[arg-type]

    store = MemoryStore()
    view = simulate(
        store,
        fleet or there(),
        arrivals,
        workload,
        Scheduler(),
        options=SimulationOptions(forecaster=Forecaster()),
    )
    assert fold(View(), store.read()).jobs == view.jobs
    return view


def said(view: View, job: str, what: str) -> list[Checked]:
    return [check for check in checked(view.jobs[job], view) if check.said.what == what]


def test_the_speed_of_jobs_alike_is_said_at_the_placement_and_comes_true():
    view = told((0, train(where=on("H100")), 40), (100, train(where=on("H100")), 60))
    first, own = said(view, "j1", "step_time")
    assert (first.said.model, first.said.attempt, first.said.value_ns) == ("H100", 1, S // 2)
    assert (first.actual_ns, first.error_ns, first.within) == (S // 2, 0, True)
    assert first.said.by == "39 steps of 1 attempt on H100"
    assert own.said.by == "its own first 8 steps"
    (alone,) = said(view, "j0", "step_time")  # nothing was known before its own steps
    assert alone.said.by.startswith("its own first")


def test_the_cost_follows_steps_devices_and_price():
    view = told((0, train(where=on("H100")), 40), (100, train(where=on("H100")), 40), start_ns=10 * S)
    first, later = said(view, "j1", "cost")
    # 40 steps of 0.5 s and 10 s of start, on 2 devices at 0.001 a second
    assert first.actual_micro == 60_000
    assert first.said.value_micro == pytest.approx(60_000, rel=0.02)
    assert first.within and later.within
    assert "40 steps of 0.5 s" in first.said.by
    assert first.said.value_ns == 0 and first.actual_ns is None


def test_steps_that_the_job_file_gives_serve_before_any_run_has_ended():
    view = told((0, train(where=on("A100"), steps=100), 100))
    (own,) = said(view, "j0", "cost")
    assert own.said.value_micro == pytest.approx(100_000, rel=0.02)
    assert own.said.by.startswith("91 steps of 1 s")


def test_without_a_price_nothing_is_said_of_cost():
    view = told((0, train(where=on("H100")), 40), (100, train(where=on("H100")), 40), fleet=there({}))
    assert said(view, "j1", "cost") == []
    assert len(said(view, "j1", "step_time")) == 2


def test_a_job_of_another_name_is_told_nothing_from_these():
    view = told((0, train(where=on("H100")), 40), (100, train(where=on("H100"), name="other"), 4))
    assert said(view, "j1", "step_time") == []


def test_what_a_restarted_attempt_takes_is_told_from_the_one_before():
    spec = train(where=on("H100"), restart=Restart(3, 1.0), steps=60)
    view = told((0, spec, 60), fails={1: (0, 25 * S, 1)})
    attempts = [(c.said.attempt, c.said.by) for c in said(view, "j0", "step_time")]
    assert [number for number, _ in attempts] == [1, 2, 2]
    assert "1 attempt on H100" in attempts[1][1]
    assert said(view, "j0", "cost")[-1].within


def test_explain_and_the_scores_show_what_came_true():
    view = told(*((k * 100, train(where=on("H100")), 40) for k in range(5)))
    shown = explain(view, view.jobs["j4"])["predictions"]
    assert {p["what"] for p in shown} == {"run_time", "step_time", "cost"}
    cost = next(p for p in shown if p["what"] == "cost")["cost"]
    assert abs(cost["error"]) < 0.01 * cost["actual"]
    found = {row["what"]: row for row in scores(view)}
    assert (found["step_time"]["said"], found["step_time"]["known"]) == (9, 9)
    assert found["step_time"]["median_relative_error"] < 0.01
    assert found["cost"]["unit"] == "USD" and found["cost"]["within"] == 1.0
    assert found["start"] == {"what": "start", "said": 0, "known": 0}


def test_the_table_has_a_row_for_each_model_and_tells_of_measured_ones_only_by_steps():
    jobs = [(0, train(where=on("H100")), 40), (100, train(where=on("H100")), 40)]
    view = told(*jobs)
    told_ = by_model(view, view.jobs["j1"].spec)
    rows = {row["model"]: row for row in told_["models"]}
    assert rows["A100"]["step_ns"] is None and rows["A100"]["price_per_device_hour"] == 1.8
    h100 = rows["H100"]
    assert (h100["step_ns"], h100["measured"], h100["steps"], h100["attempts"]) == (S // 2, True, 78, 2)
    assert h100["cost_per_1000_steps"] == pytest.approx(1.0)
    assert h100["rest"]["cost"] == pytest.approx(0.04)
    wide = by_model(view, spec_of(view, "train", None, 4))
    row = next(row for row in wide["models"] if row["model"] == "H100")
    assert (row["step_ns"], row["split"]) == (S // 4, True)


def test_a_name_that_no_job_has_is_bad_input():
    with pytest.raises(BadInput, match="no job of this name"):
        spec_of(told((0, train(), 4)), "nope", None, None)


def test_predictions_of_cost_survive_a_snapshot():
    view = told((0, train(where=on("H100")), 40), (100, train(where=on("H100")), 40))
    again = decode(encode(view))
    assert again is not None
    assert again.jobs["j1"].predictions == view.jobs["j1"].predictions
    assert again.speeds == view.speeds

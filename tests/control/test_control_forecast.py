"""What the controller foretells is in the log, and what came true beside it."""

from __future__ import annotations

from sim.worlds import S, fleet_of
from unidle.control.forecast import Forecaster
from unidle.control.queries.describe import explain
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.sim.workload import SimJob
from unidle.events import types as ev
from unidle.jobs import JobSpec
from unidle.place.policy import FirstFit
from unidle.predict.outcome import checked, score
from unidle.store.memory import MemoryStore
from unidle.view.fold import fold
from unidle.view.snapshot import decode, encode
from unidle.view.state import View


def spec(**more: object) -> JobSpec:
    return JobSpec(("x",), **{"user": "ann", "name": "train", **more})  # type: ignore[arg-type]


def told(*jobs: tuple[int, JobSpec, int], devices: int = 1) -> tuple[MemoryStore, View]:
    """Jobs as (arrival in s, specification, work in s) under a controller that foretells."""
    store = MemoryStore()
    arrivals = [Arrival(1 + at * S, f"j{k}", job) for k, (at, job, _) in enumerate(jobs)]
    work = {f"j{k}": SimJob(work * S) for k, (_, _, work) in enumerate(jobs)}
    view = simulate(
        store,
        fleet_of(devices),
        arrivals,
        lambda c: work[c.job],
        FirstFit(),
        options=SimulationOptions(forecaster=Forecaster()),
    )
    return store, view


def test_the_first_job_of_a_user_is_not_foretold_and_the_next_is() -> None:
    _, view = told((0, spec(), 100), (200, spec(), 130))
    assert checked(view.jobs["j0"]) == []
    (run,) = checked(view.jobs["j1"])
    assert (run.said.what, run.said.value_ns, run.said.at_ns) == ("run_time", 100 * S, 1 + 200 * S)
    assert (run.actual_ns, run.error_ns, run.within) == (130 * S, 30 * S, False)


def test_a_job_that_waits_is_told_when_it_will_start() -> None:
    _, view = told((0, spec(), 100), (200, spec(), 100), (210, spec(), 100), (220, spec(), 100))
    starts = {j: [c for c in checked(view.jobs[j]) if c.said.what == "start"] for j in view.jobs}
    assert [len(starts[f"j{k}"]) for k in range(4)] == [0, 0, 1, 1]
    assert [starts[f"j{k}"][0].said.value_ns for k in (2, 3)] == [1 + 300 * S, 1 + 400 * S]
    assert [starts[f"j{k}"][0].error_ns for k in (2, 3)] == [0, 0]


def test_the_users_own_estimate_serves_where_there_is_no_history() -> None:
    _, view = told((0, spec(estimate_s=60.0), 50), (10, spec(name="other", user="bob"), 5))
    (start,) = checked(view.jobs["j1"])
    assert (start.said.what, start.said.value_ns, start.error_ns) == ("start", 1 + 60 * S, -10 * S)


def test_jobs_that_fail_teach_nothing() -> None:
    store = MemoryStore()
    fails = SimJob(100 * S, fails={1: (0, S, 1)})
    arrivals = [Arrival(1, "j0", spec()), Arrival(1 + 10 * S, "j1", spec())]
    view = simulate(
        store,
        fleet_of(1),
        arrivals,
        lambda _: fails,
        FirstFit(),
        options=SimulationOptions(forecaster=Forecaster()),
    )
    assert [job.state for job in view.jobs.values()] == ["failed", "failed"]
    assert view.jobs["j1"].predictions == []


def test_predictions_are_part_of_the_log_and_of_a_snapshot() -> None:
    store, view = told((0, spec(), 100), (200, spec(), 100), (210, spec(), 100))
    said = view.jobs["j2"].predictions
    assert [p.what for p in said] == ["run_time", "start"]
    assert fold(View(), store.read()).jobs["j2"].predictions == said
    again = decode(encode(view))
    assert again is not None
    assert again.jobs["j2"].predictions == said
    assert sum(event.kind == "predicted" for event in store.read()) == 3


def test_explain_shows_each_prediction_with_its_error() -> None:
    _, view = told((0, spec(), 100), (200, spec(), 100), (210, spec(), 90))
    run, start = explain(view, view.jobs["j2"])["predictions"]
    assert (run["what"], run["error_ns"], run["within"]) == ("run_time", -10 * S, False)
    assert (start["what"], start["value_ns"], start["error_ns"]) == ("start", 1 + 300 * S, 0)
    assert run["by"] == "one earlier job train of ann"


def test_a_score_says_how_often_the_truth_was_within_the_bounds() -> None:
    runs = [(k * 1000, spec(), 100 + k % 3) for k in range(40)]
    _, view = told(*runs)
    found = score(view.jobs.values(), "run_time")
    assert found is not None
    assert found.known == 39
    assert found.within >= 0.9
    assert found.median_relative <= 0.02
    assert score(view.jobs.values(), "start") is None


def test_a_forecaster_made_of_the_view_knows_what_one_that_was_there_knows() -> None:
    _, view = told((0, spec(), 100), (200, spec(), 50), (400, spec(name="b"), 7))
    found = Forecaster.of(view)
    said = found.run_time("new", spec())
    assert isinstance(said, ev.Predicted)
    assert (said.value_ns, said.low_ns, said.high_ns) == (75 * S, 50 * S, 100 * S)

"""On what terms a replay runs: what is known of run times, other fleets and names, an early end, the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unidle.control.policies import policy_names
from unidle.control.replay.outcome import outcome_of
from unidle.control.replay.recorded import scenario_of_store
from unidle.control.replay.workload import Assumptions, Scenario, replay, scenario_of, told
from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping
from unidle.files.trace import COLUMNS, OPTIONAL, Renames, load_trace
from unidle.fleet import Fleet
from unidle.store.memory import MemoryStore
from unidle.view.source import ledger_source
from unidle.view.state import View

S = 1_000_000_000
POLICIES = policy_names()


def fleet(nodes: int = 2, gpus: int = 4, model: str = "H100", **more: object) -> Fleet:
    devices = {"count": gpus, "kind": "gpu", "model": model}
    return fleet_from_mapping({"nodes": [{"id": f"n[1-{nodes}]", "devices": devices}], **more}, "test")


def scenario(tmp_path: Path, there: Fleet, *lines: dict[str, object]) -> Scenario:
    columns = (*COLUMNS, *OPTIONAL)
    rows = [{**dict.fromkeys(columns, ""), "job": f"j{k}", "gpus": 1, **line} for k, line in enumerate(lines)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join(columns), *(",".join(str(r[c]) for c in columns) for r in rows)]))
    return scenario_of(load_trace(path), there)


def kept(given: Scenario, policy: str = "unidle", assumed: Assumptions | None = None, **more: int):
    store = MemoryStore()
    return store, replay(given, policy, store, assumed, **more)


# -- run times -------------------------------------------------------------------------------------------


def test_true_run_times_are_told_with_their_factor(tmp_path: Path) -> None:
    given = scenario(tmp_path, fleet(), {"submit_s": 0, "duration_s": 100, "estimate_s": 7})
    for assumed, estimate_s in (
        (Assumptions(estimates="exact"), 100.0),
        (Assumptions(estimates="exact", estimate_factor=1.5), 150.0),
        (Assumptions(estimates="none"), 7.0),
        (Assumptions(estimates="learned"), 7.0),
    ):
        (arrival,) = told(given, assumed)
        assert arrival.spec.estimate_s == estimate_s


def test_run_times_are_learned_from_jobs_of_the_same_user_and_name(tmp_path: Path) -> None:
    lines = [{"submit_s": 200 * k, "duration_s": 100, "user": "ann", "name": "sweep"} for k in range(4)] + [
        {"submit_s": 200 * k, "duration_s": 50, "user": "bob", "name": "sweep"} for k in range(4)
    ]
    given = scenario(
        tmp_path, fleet(), *lines, {"submit_s": 1000, "duration_s": 1, "user": "ann", "name": "sweep"}
    )
    _, view = kept(given)
    (said,) = view.jobs["j8"].predictions
    assert (said.what, said.value_ns, said.by) == ("run_time", 100 * S, "4 earlier jobs sweep of ann")
    _, view = kept(given, assumed=Assumptions(estimates="none"))
    assert view.jobs["j8"].predictions == []


def test_without_users_and_names_jobs_of_one_size_and_queue_are_alike(tmp_path: Path) -> None:
    lines = [{"submit_s": 300 * k, "duration_s": d, "gpus": g, "ranks": g}
             for k, (g, d) in enumerate([(1, 20), (4, 200), (1, 20), (4, 200), (1, 20), (4, 9)])]  # fmt: skip
    _, view = kept(scenario(tmp_path, fleet(), *lines))
    assert [view.jobs[j].predictions[0].value_ns // S for j in ("j4", "j5")] == [20, 200]


# -- an early end ----------------------------------------------------------------------------------------


def test_a_replay_that_is_stopped_has_done_what_was_done_by_then(tmp_path: Path) -> None:
    given = scenario(
        tmp_path, fleet(1, 1), {"submit_s": 100, "duration_s": 500}, {"submit_s": 110, "duration_s": 500}
    )
    store, view = kept(given, until_ns=given.start_ns + 60 * S)
    assert (view.jobs["j0"].state, view.jobs["j1"].state) == ("running", "queued")
    found = outcome_of(view, ledger_source(store, view))
    assert {t.leaf: t.ns for t in found.ledger.leaves} == {"useful": 60 * S}
    assert (found.makespan_ns, found.never_started) == (60 * S, 1)


# -- another fleet ---------------------------------------------------------------------------------------


def recorded(tmp_path: Path) -> tuple[MemoryStore, View]:
    there = fleet(2, 4, queues=[{"name": "ml"}, {"name": "vision"}])
    given = scenario(
        tmp_path, there,
        {"submit_s": 0, "duration_s": 100, "queue": "ml", "model": "H100", "gpus": 4},
        {"submit_s": 1, "duration_s": 100, "queue": "vision", "gpus": 8, "ranks": 8},
        {"submit_s": 2, "duration_s": 100, "queue": "vision"},
    )  # fmt: skip
    return kept(given)


def on(tmp_path: Path, other: Fleet, renames: Renames | None = None) -> Scenario:
    store, view = recorded(tmp_path)
    return scenario_of_store(store, view, ledger_source(store, view), fleet=other, renames=renames)


def test_a_queue_that_the_other_fleet_lacks_is_one_error_or_is_named_anew(tmp_path: Path) -> None:
    other = fleet(2, 4, queues=[{"name": "lab"}, {"name": "ml", "parent": "lab"}])
    with pytest.raises(BadInput) as caught:
        on(tmp_path, other)
    line = caught.value.line()
    assert "job j1 needs something that the fleet does not have" in line
    assert "(got 'vision'); it has ml; use --queue-map OLD=NEW to replace it" in line
    found = on(tmp_path, other, Renames({"vision": "ml"}))
    assert {a.spec.queue for a in found.arrivals} == {"ml"}
    _, view = kept(found)
    assert {job.state for job in view.jobs.values()} == {"succeeded"}


def test_a_model_that_the_other_fleet_lacks_is_one_error_or_is_named_anew(tmp_path: Path) -> None:
    other = fleet(2, 4, "NVIDIA A100-SXM4-80GB")
    with pytest.raises(BadInput, match="job j0 needs something that the fleet does not have"):
        on(tmp_path, other)
    found = on(tmp_path, other, Renames({}, {"H100": "A100"}))
    assert found.arrivals[0].spec.where.models.include == ("A100",)
    _, view = kept(found)
    assert {job.state for job in view.jobs.values()} == {"succeeded"}


def test_a_name_that_no_job_has_is_a_slip(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--queue-map: no job names it \(got 'nlp'\); jobs name ml, vision"):
        on(tmp_path, fleet(), Renames({"nlp": "ml"}))


def test_jobs_that_the_other_fleet_cannot_hold_are_left_out_and_counted(tmp_path: Path) -> None:
    found = on(tmp_path, fleet(1, 4))
    assert [a.job for a in found.arrivals] == ["j0", "j2"]
    assert found.left_out == {"the fleet can never hold such a job": 1}


# -- the same bytes --------------------------------------------------------------------------------------

_SAVED = """
import hashlib, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from control.test_control_replay import some_jobs, trace_of
from sim.worlds import fleet_of
from unidle.control.replay.workload import Assumptions, replay
from unidle.store.open import open_store
place = Path(sys.argv[2])
place.mkdir()
scenario = trace_of(place, fleet_of(8, 8), some_jobs(4))
assumed = Assumptions(mtbf_s=2000, mttr_s=200, comm_ppm=100_000)
for policy in sys.argv[3:]:
    store = open_store(str(place / policy), create=True)
    replay(scenario, policy, store, assumed)
    log = repr([tuple(event) for event in store.read()])
    print(policy, len(log), hashlib.sha256(log.encode()).hexdigest())
    store.close()
"""


def test_the_saved_log_is_the_same_byte_by_byte_in_any_process(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    said = []
    for run, seed in (("one", "1"), ("two", "2")):
        command = [sys.executable, "-c", _SAVED, str(tests), str(tmp_path / run), *POLICIES]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        said.append(done.stdout.splitlines())
    assert said[0] == said[1]
    assert [line.split()[0] for line in said[0]] == list(POLICIES)
    assert all(int(line.split()[1]) > 10_000 for line in said[0])

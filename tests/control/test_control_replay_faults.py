"""A fault trace replayed by the loop: ratios against the formula, the worth of each capability, the commands.

The trace is made here: nodes fail by chance and are repaired after hours, and one is a lemon.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from unidle.cli.commands import app
from unidle.control.replay.faults import (
    CapabilityCosts,
    FaultReplay,
    ReplayCase,
    ReplayTerms,
    Span,
    one_by_one,
    proved,
    variants,
)
from unidle.errors import BadInput
from unidle.files.fault_trace import NodeTrouble, load_fault_trace
from unidle.store.memory import MemoryStore

S = 1_000_000_000
SERVERS, DAYS = 40, 60


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance, rows = random.Random(5), []
    for k in range(SERVERS):
        at, mean = chance.expovariate(1 / 20), 20.0 if k else 2.0
        while at < DAYS - 1:
            end = at + chance.expovariate(1 / 0.3)
            kind = {"Level": "Hardware Failure", "Class": chance.choice(["GPU", "NIC"]), "Desc": "broken"}
            for when, event in ((at, "fault_start"), (min(end, DAYS), "fault_end")):
                rows.append({"node_id": f"s{k}", "event_time": when, "event_type": event, "fault_type": kind})
            at = end + chance.expovariate(1 / mean)
    path = tmp_path_factory.mktemp("trace") / "faults.json"
    path.write_text(json.dumps(rows))
    return path


def replay_of(trace_file: Path, **terms: Any) -> FaultReplay:
    return FaultReplay(load_fault_trace(trace_file), SERVERS, ReplayTerms(**terms))


ALL = CapabilityCosts(spares=8, peer_copies=True, every_s=None, warm=True, preflight=True)


@pytest.mark.slow
def test_effective_training_time_is_what_the_formula_expects_where_its_assumptions_hold(
    trace_file: Path,
) -> None:
    replay = replay_of(trace_file)
    for ways in variants(ALL, 1800.0).values():
        outcome = replay.run(ReplayCase("x", 32, 1, ways))
        if outcome.holds:
            assert outcome.ettr_placed == pytest.approx(outcome.formula, rel=0.05)
    assert replay.run(ReplayCase("x", 32, 1, ALL)).holds


def test_spares_copies_and_warm_processes_are_each_worth_something(trace_file: Path) -> None:
    replay = replay_of(trace_file)
    found = {name: replay.run(ReplayCase(name, 32, 1, ways)) for name, ways in variants(ALL, 1800.0).items()}
    given_ = found["as_given"]
    for name in ("no_spares", "no_peer_copies", "no_interval", "no_warm_restart", "none"):
        assert found[name].ettr < given_.ettr, name
    assert found["no_spares"].wait_h > 10 * given_.wait_h
    assert found["no_peer_copies"].lost_gpu_h > 2 * given_.lost_gpu_h


@pytest.mark.slow
@pytest.mark.parametrize("copies", [False, True])
def test_the_chosen_interval_beats_every_fixed_one(trace_file: Path, copies: bool) -> None:
    replay = replay_of(trace_file)

    def mean(every_s: float | None) -> float:
        ways = CapabilityCosts(8, copies, every_s, True, False)
        return sum(replay.run(ReplayCase("x", 32, seed, ways)).ettr for seed in (1, 2)) / 2

    chosen = mean(None)
    for fixed_s in (600.0, 1800.0, 14_400.0 if copies else 28_800.0):
        assert mean(fixed_s) < chosen


def test_the_time_of_a_gang_is_useful_lost_held_or_waited_and_nothing_else(trace_file: Path) -> None:
    outcome = replay_of(trace_file, gpus_per_node=4).run(ReplayCase("x", 30, 2, CapabilityCosts(spares=2)))
    in_place_h = (outcome.wall_h - outcome.wait_h) * 30 * 4
    down_under_it = in_place_h - outcome.useful_gpu_h - outcome.lost_gpu_h - outcome.held_gpu_h
    assert 0 <= down_under_it < 0.01 * in_place_h
    whole = sum(
        (outcome.useful_gpu_h, outcome.lost_gpu_h, outcome.held_gpu_h, outcome.down_gpu_h, outcome.free_gpu_h)
    )
    assert whole == pytest.approx(outcome.wall_h * 32 * 4, rel=1e-6)
    assert outcome.paid == pytest.approx(whole * 10.0, rel=1e-6)


def test_the_same_replay_gives_the_same_log(trace_file: Path) -> None:
    def log() -> list[tuple[str, bytes]]:
        store = MemoryStore()
        replay_of(trace_file).run(ReplayCase("x", 16, 3, ALL), store)
        return [(event.kind, bytes(event.body)) for event in store.read()]

    assert log() == log()


def test_a_job_of_so_many_steps_ends_when_they_are_done(trace_file: Path) -> None:
    outcome = replay_of(trace_file, steps=50_000).run(ReplayCase("x", 16, 1, ALL))
    assert outcome.ended and outcome.useful_gpu_h == pytest.approx(50_000 * 10 / 3600 * 16 * 8)


times = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


@given(times)
def test_faults_of_one_server_that_overlap_are_one(given_: list[tuple[int, int]]) -> None:
    troubles = [NodeTrouble(a, "n", a + d, "l", "GPU", "t") for a, d in given_]
    spans = one_by_one(troubles)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    assert all(any(s <= t.start_ns and t.end_ns <= e for s, e, _ in spans) for t in troubles)


@given(times, st.floats(0, 1), st.integers(0, 10))
def test_a_burn_in_keeps_a_server_out_longer_and_hides_only_relapses(
    given_: list[tuple[int, int]], recall: float, window: int
) -> None:
    spans: list[Span] = one_by_one(NodeTrouble(a * S, "n", (a + d) * S, "l", "GPU", "t") for a, d in given_)
    terms = ReplayTerms(burn_in_s=1, relapse_s=window, recall=recall)
    found = proved(spans, terms, [0.5] * len(spans))
    assert len(found) <= len(spans)
    assert all(any(s <= a and b <= e for s, e, _ in found) for a, b, _ in spans)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))
    if recall <= 0.5 and all(b[0] - a[1] > S for a, b in itertools.pairwise(spans)):
        assert len(found) == len(spans)


def test_more_nodes_than_servers_are_refused(trace_file: Path) -> None:
    with pytest.raises(BadInput, match="--gang"):
        replay_of(trace_file).nodes(ReplayCase("x", 39, 1, CapabilityCosts(spares=2)))


def cli(*words: str) -> str:
    result = CliRunner().invoke(app(), list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_commands_tell_a_replay_and_the_accounts_of_its_store(trace_file: Path, tmp_path: Path) -> None:
    words = ["replay", "faults", "--trace", str(trace_file), "--gang", "16", "--servers", "40", "-j", "1"]
    answer = json.loads(cli(*words, "--alone", "--intervals", "600", "--save", str(tmp_path), "--json"))
    assert answer["how"] == "modelled"
    (gang,) = answer["gangs"]
    assert set(gang["variants"]) == {"as_given", "every_600s"}
    given_ = gang["variants"]["as_given"]
    assert given_["ettr"] == given_["seeds"]["1"]["ettr"] and given_["ettr_worth"] == 0
    assert "without spares" in cli(*words)
    store = str(tmp_path / "16-as_given-1.db")
    found = json.loads(cli("guard", "failures", "--store", store, "--labels", str(trace_file), "--json"))
    assert found["how"] == "modelled"
    assert found["node_days"] == pytest.approx(28 * load_fault_trace(trace_file).end_ns / 86_400e9, rel=1e-6)
    (size,) = found["jobs"]
    assert (size["devices"], size["interruptions"]) == ([9, 16], given_["restarts"])
    assert {row["component"] for row in found["components"]} == {"any", "GPU", "NIC"}
    assert found["kinds"][0]["kind"] == "exit"
    assert (found["judged"]["false_removals"], found["judged"]["recall"]) == (0, 1.0)
    half = json.loads(cli("guard", "failures", "--store", store, "--since", "20d", "--json"))
    assert half["node_days"] == pytest.approx(28 * 20, rel=1e-6)
    assert half["components"][0]["failures"] < found["components"][0]["failures"]
    assert "MTBF" in cli("guard", "failures", "--store", store)


def test_an_empty_store_has_one_line(tmp_path: Path) -> None:
    from unidle.store.open import open_store

    path = str(tmp_path / "s.db")
    open_store(path, create=True).close()
    assert cli("guard", "failures", "--store", path).count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gang", "0"], "--gang"),
        (["--gang", "39"], "--gang"),
        (["--servers", "2"], "--servers"),
        (["--warm", "yes"], "--warm"),
        (["--checkpoint-every", "0"], "--checkpoint-every"),
        (["--intervals", "60,x"], "--intervals"),
        (["--seeds", "-1"], "--seeds"),
    ],
)
def test_a_bad_option_is_one_error(trace_file: Path, words: list[str], says: str) -> None:
    given_ = ["replay", "faults", "--trace", str(trace_file), "--servers", "40", "--gang", "8", *words]
    result = CliRunner().invoke(app(), given_)
    assert isinstance(result.exception, BadInput) and result.exception.field == says


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_what_is_no_duration_is_refused(trace_file: Path, value: str) -> None:
    result = CliRunner().invoke(app(), ["replay", "faults", "--trace", str(trace_file), "--write-s", value])
    assert isinstance(result.exception, BadInput) and result.exception.field == "--checkpoint-write"

"""``unidle replay trace`` and ``store`` as users and scripts call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.commands import ask, rows, unidle

FLEET = "nodes: [{id: 'n[1-2]', devices: {count: 4, kind: gpu, model: H100}}]\nprices: {H100: 2.0}\n"
TRACE = """job,submit_s,duration_s,gpus,cpu_milli,memory_mib,model,queue,priority,preemptible,ranks
a,0,600,4,0,0,H100,ml,0,false,4
b,10,300,2,0,0,,ml,0,true,2
c,20,300,8,0,0,,vision,0,false,8
d,30,60,1,0,0,,vision,5,false,1
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_policies_stand_side_by_side_for_people_and_for_scripts(fleet: Path, trace: Path) -> None:
    command = ("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "firstfit,spread")
    done = unidle(*command)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["firstfit", "spread"]
    assert any(line.startswith("allocation %") for line in lines)
    assert "modelled" in lines[-1]
    answer = ask(*command)
    assert list(answer["policies"]) == ["firstfit", "spread"]
    assert (answer["how"], answer["jobs"], answer["devices"]) == ("modelled", 4, 8)
    for found in answer["policies"].values():
        assert (found["succeeded"], found["queueing_s"]["jobs"]) == (4, 4)
        assert found["completion_s"]["p99"] >= found["completion_s"]["p50"] > 0
        assert 0 < found["allocation_percent"] <= 100
        assert {leaf["how"] for leaf in found["ledger"]["leaves"]} == {"modelled"}
    assert answer == ask(*command)


def test_a_replay_that_is_kept_is_a_store_like_any_other(fleet: Path, trace: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    command = ("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "bestfit", "--save", kept)
    assert unidle(*command).returncode == 0
    store = kept / "bestfit.db"
    assert {row["how"] for row in rows(store)} == {"modelled"}
    assert unidle("ledger", "--store", store, "--check").returncode == 0
    story = ask("explain", "c", "--store", store)
    assert story["decisions"][1]["text"].startswith("attempt 1 on tightest 2 nodes")
    again = unidle(*command)
    assert again.returncode == 2
    assert "--save: the store of a replay is there already" in again.stderr
    replayed = ask("replay", "store", "--store", store, "--policy", "bestfit,firstfit")
    mine = {k: v for k, v in replayed["policies"]["bestfit"].items() if k != "ledger"}
    assert mine == {k: v for k, v in replayed["recorded"].items() if k != "ledger"}
    assert replayed["jobs"] == 4


def test_slips_are_one_line_and_exit_code_2(fleet: Path, trace: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(TRACE + "e,40,NaN,1,0,0,,,,,1\n")
    large = tmp_path / "large.csv"
    large.write_text(TRACE + "e,40,1,16,0,0,,,,,16\n")
    cases = {
        ("--trace", trace, "--policy", "nofit"): "--policy: there is no such placement policy (got 'nofit')",
        ("--trace", tmp_path / "none.csv", "--policy", "firstfit"): "the trace cannot be read",
        ("--trace", bad, "--policy", "firstfit"): f"{bad}:6: duration_s: must be a finite number (got 'NaN')",
        ("--trace", large, "--policy", "firstfit"): f"{large}:6: gpus: more than the fleet has: 8 (got 16)",
    }
    for words, says in cases.items():
        done = unidle("replay", "trace", "--fleet", fleet, *words)
        assert (done.returncode, done.stdout) == (2, ""), done
        (line,) = done.stderr.splitlines()
        assert says in line
    done = unidle("replay", "store", "--store", tmp_path / "none.db", "--policy", "firstfit")
    assert done.returncode == 4


def test_jobs_that_really_ran_are_replayed_beside_what_was_recorded(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    for seconds in ("0.3", "0.2"):
        done = unidle("run", "--store", store, "--cpu-devices", 2, "--json", "--", "sleep", seconds)
        assert done.returncode == 0, done.stderr
    answer = ask("replay", "store", "--store", store, "--policy", "firstfit")
    recorded, found = answer["recorded"], answer["policies"]["firstfit"]
    assert {leaf["how"] for leaf in recorded["ledger"]["leaves"]} != {"modelled"}
    assert {leaf["how"] for leaf in found["ledger"]["leaves"]} == {"modelled"}
    assert recorded["succeeded"] == found["succeeded"] == 2
    assert json.dumps(answer)

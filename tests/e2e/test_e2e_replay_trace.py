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


def unidle_alone(fleet: Path, trace: Path) -> tuple[str | Path, ...]:
    return ("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "unidle")


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


def test_a_prediction_that_came_true_is_said_to_be_so(fleet: Path, tmp_path: Path) -> None:
    trace = tmp_path / "told.csv"
    head, *_ = TRACE.splitlines()
    trace.write_text(f"{head},estimate_s\na,0,100,4,,,,,,,1,100\n")
    command = unidle_alone(fleet, trace)
    assert unidle(*command, "--save", tmp_path / "k").returncode == 0
    told = unidle("explain", "a", "--store", tmp_path / "k" / "unidle.db").stdout
    assert told.count("from the job file's estimate_s; it was so\n") == 2  # its run time, and its cost


def test_slips_are_one_line_and_exit_code_2(fleet: Path, trace: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(TRACE + "e,40,NaN,1,0,0,,,,,1\n")
    large = tmp_path / "large.csv"
    large.write_text(TRACE + "e,40,1,16,0,0,,,,,16\n")
    cases = {
        ("--trace", trace, "--policy", "nofit"): "--policy: there is no such placement policy (got 'nofit')",
        (
            "--trace",
            tmp_path / "none.csv",
            "--policy",
            "firstfit",
        ): "there is no such file; check the path of the trace file",
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


@pytest.mark.slow
def test_what_waits_when_a_replay_is_stopped_is_explained_and_repeated_from_a_snapshot(
    fleet: Path, trace: Path, tmp_path: Path
) -> None:
    kept, snapshot = tmp_path / "kept", tmp_path / "snapshot"
    command = (*unidle_alone(fleet, trace), "--estimates", "exact")
    done = unidle(*command, "--until", 0.1, "--save", kept)
    assert done.returncode == 0, done.stderr
    assert "the first 0.1 h" in done.stdout
    store = kept / "unidle.db"
    (waiting,) = ask("list", "--store", store, "--state", "queued")
    assert waiting["job"] == "c"
    row = unidle("list", "--store", store, "--state", "queued").stdout.splitlines()[1]
    assert "  5 min" in row  # by the replay's own time, not today's
    said = ask("explain", "c", "--store", store)["waiting"]
    # at 360 s: a (4 of the 8 GPUs) runs until 600 s; b and d have ended
    assert (said["now"]["code"], said["now"]["needs"], said["now"]["free"]) == ("reserved", 8, 4)
    assert said["expected_start_ns"] == 600 * 10**9 + 1
    assert said["in_the_way"][0]["unblock"] == "free the devices of 4 more ranks"
    assert said["stops"] == []
    told = unidle("explain", "c", "--store", store).stdout
    assert "needs 8 GPUs, 4 of 8 are free for it; room is reserved for it, in 240 s" in told
    assert "what would help: free the devices of 4 more ranks" in told
    taken = unidle("fleet", "snapshot", "--store", store)
    assert taken.returncode == 0, taken.stderr
    snapshot.write_text(taken.stdout)
    repeated = ask("place", "--snapshot", snapshot, "--job", "c")
    assert repeated["placed"] is False
    assert repeated["blocked_by"][0] == said["now"]
    assert repeated["stops"] == []
    # a short job passes, one that would still run at 600 s does not
    job = tmp_path / "job.yaml"
    for seconds, placed in ((100, True), (1000, False)):
        job.write_text(f"{{command: [x], device: gpu, estimate_s: {seconds}}}")
        assert ask("place", "--snapshot", snapshot, "--job", job)["placed"] is placed
    assert (
        "it would still run when a job before it is planned to start"
        in unidle("place", "--snapshot", snapshot, "--job", job).stdout
    )


def test_money_is_there_where_the_fleet_file_has_prices(fleet: Path, trace: Path) -> None:
    command = ("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "firstfit")
    found = ask(*command)["policies"]["firstfit"]
    hours = found["makespan_s"] / 3600
    assert found["money"]["paid"] == pytest.approx(8 * 2.0 * hours, abs=1e-5)
    free = sum(leaf["ns"] for leaf in found["ledger"]["leaves"] if leaf["group"] == "free")
    assert found["money"]["free"] == pytest.approx(free / 3.6e12 * 2.0, abs=1e-5)
    assert "paid USD" in unidle(*command).stdout


def test_a_store_is_replayed_on_a_fleet_with_other_queues(fleet: Path, trace: Path, tmp_path: Path) -> None:
    kept, other = tmp_path / "kept", tmp_path / "other.yaml"
    command = ("replay", "trace", "--fleet", fleet, "--trace", trace, "--policy", "firstfit", "--save", kept)
    assert unidle(*command).returncode == 0
    other.write_text("queues: [{name: ml}, {name: lab}]\n" + FLEET.replace("H100", "A100"))
    store = ("replay", "store", "--store", kept / "firstfit.db", "--fleet", other, "--policy", "unidle")
    done = unidle(*store)
    assert (done.returncode, done.stdout) == (2, "")
    assert "use --queue-map OLD=NEW to replace it" in done.stderr or "--model-map" in done.stderr
    answer = ask(*store, "--queue-map", "vision=lab", "--model-map", "H100=A100")
    assert answer["policies"]["unidle"]["succeeded"] == 4
    assert set(answer["policies"]["unidle"]["queues"]) == {"ml", "lab"}


def with_fillers(fleet: Path, trace: Path) -> list[str | Path]:
    options = ("--policy", "unidle,spread", "--fillers", "4x2")
    return ["replay", "trace", "--fleet", fleet, "--trace", trace, *options]


def test_fillers_get_what_is_free_and_move_no_other_job(fleet: Path, trace: Path) -> None:
    done = unidle(*with_fillers(fleet, trace))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == [
        "unidle",
        "unidle",
        "+",
        "fillers",
        "spread",
        "spread",
        "+",
        "fillers",
    ]
    text = " ".join(done.stdout.split())
    assert "all starts and ends of the other 4 jobs are the same to the nanosecond" in text


def test_what_fillers_got_is_in_the_answer_and_in_the_store_that_is_kept(
    fleet: Path, trace: Path, tmp_path: Path
) -> None:
    answer = ask(*with_fillers(fleet, trace), "--save", tmp_path / "kept")
    for name in ("unidle", "spread"):
        got, alone, filled = (
            answer["fillers"][name],
            answer["policies"][name],
            answer["policies"][f"{name} + fillers"],
        )
        assert (got["fillers"], got["jobs"], got["moved"]) == (4, 4, 0)
        assert 0 < got["filled_gpu_h"] < got["free_before_gpu_h"] and got["yields"] > 0
        assert [filled[k] for k in ("jobs", "queueing_s", "completion_s", "makespan_s")] == [
            alone[k] for k in ("jobs", "queueing_s", "completion_s", "makespan_s")
        ]
    store = tmp_path / "kept" / "unidle-fillers.db"
    assert unidle("ledger", "--store", store, "--check").returncode == 0
    leaves = {row["leaf"] for row in rows(store) if (row["job"] or "").startswith("filler-")}
    assert "filled" in leaves and not leaves & {"useful", "preempted", "no_artefact"}


@pytest.mark.parametrize("wish", ["0", "x", "4x", "4x0", "-1", "20000", "1x2x3"])
def test_what_is_no_number_of_fillers_is_refused(fleet: Path, trace: Path, wish: str) -> None:
    done = unidle(*unidle_alone(fleet, trace), f"--fillers={wish}")
    assert done.returncode == 2 and "--fillers: is not a number of fillers" in done.stderr

"""``unidle span run`` as a user runs it: real ranks, real links, real faults."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import needs
from span_run import runs
from span_run.live import Live

STEPS = 12
MANY = 100_000  # steps: as many as make the restart of a busy machine pay


def trained(
    place: Path, *words: str, count: int = 2, train: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """The JSON of a run that has to succeed."""
    file = runs.written(place, runs.span(count, train={**runs.TRAIN, **(train or {})}, **fields))
    done = runs.unidle("span", "run", str(file), "--store", str(place / "s.db"), "--json", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def file_with_checkpoints(place: Path, count: int, ms: int = 20, **fields: Any) -> Path:
    """Paced steps that are long enough to be disturbed, a checkpoint every third."""
    train = {**runs.TRAIN, "steps": STEPS, "pace": True, "checkpoint": {"directory": "kept", "every": 3}}
    times = dict.fromkeys(("forward", "backward", "weight"), ms * runs.MS)
    return runs.written(place, runs.span(count, train=train, stage_ns=times, **fields))


@pytest.mark.slow
def test_two_sites_on_loopback_train_the_same_as_one_process(tmp_path: Path) -> None:
    told = trained(
        tmp_path, "--no-namespaces", "--compare", "single", "--gantt", str(tmp_path / "g.svg"), "--perfetto",
        str(tmp_path / "t.json"), train={"checkpoint": {"directory": "kept"}, "optimizer": runs.SGD},
    )  # fmt: skip
    assert told["state"] == "succeeded"
    assert told["compare"]["single"]["loss_difference"] == 0
    assert told["compare"]["single"]["parameter_difference"] == 0
    assert set(told["losses"]) == {"1", "2", "3", "4"}
    assert told["link_bytes"] == {"a>b": 512, "b>a": 512}
    assert told["step_ns"]["modelled"] > 0
    assert "measured" in (tmp_path / "g.svg").read_text() and "modelled" in (tmp_path / "g.svg").read_text()
    names = {event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert {"F0", "B3", "W1", "send F0"} <= names
    ledger = runs.unidle("ledger", "--store", str(tmp_path / "s.db"), "--json")
    rows = json.loads(ledger.stdout)
    assert rows and ledger.returncode == 0
    stages_are_profiled(tmp_path, told["job"])


def stages_are_profiled(place: Path, job: str) -> None:
    """What the ranks wrote is what the stages take, and a simulation works from it."""
    file = place / "span.json"
    asked = ("span", "profile", job, "--store", str(place / "s.db"))
    told = json.loads(runs.unidle(*asked, "--json", "--write", str(file)).stdout)
    assert [(each["stage"], each["site"], each["sends_bytes"]) for each in told["stages"]] == [
        (0, "a", 128),
        (1, "b", None),
    ]
    assert all(each["microbatches"] == 3 * 4 and not each["joined"] for each in told["stages"])
    stored = json.loads(file.read_text())["stage_ns"]
    assert stored["forward"] == [each["forward"]["value"] for each in told["stages"]]
    assert stored["weight"] == [each["weight"]["value"] for each in told["stages"]]
    assert "weights ms" in runs.unidle(*asked).stdout
    simulated = json.loads(runs.unidle("span", "simulate", str(file), "--schedule", "1f1b", "--json").stdout)
    assert simulated["1f1b"]["iteration_ns"] > sum(stored["forward"])
    other = runs.unidle("span", "profile", "another", "--store", str(place / "s.db"))
    assert (
        other.returncode == 2 and "the store has no job of `unidle span run` with this name" in other.stderr
    )


@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_one_sentence_and_no_second_try(tmp_path: Path) -> None:
    file = runs.written(tmp_path, runs.span(train={**runs.TRAIN, "cut": [4, 4]}))
    done = runs.unidle("span", "run", str(file), "--no-namespaces", "--store", str(tmp_path / "s.db"))
    assert done.returncode != 0
    assert "the model has 5" in done.stderr
    assert "attempt 2" not in done.stdout


def test_namespaces_without_root_are_refused_before_anything_starts(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        file = runs.written(tmp_path, runs.span(pipelines=120, count=2))
        done = runs.unidle("span", "run", str(file), "--namespaces", "--store", str(tmp_path / "s.db"))
        assert "240 devices are more than the 200 namespaces of one machine" in done.stderr
    else:
        file = runs.written(tmp_path, runs.span())
        done = runs.unidle("span", "run", str(file), "--namespaces", "--store", str(tmp_path / "s.db"))
        assert "namespaces are not possible here: it needs root" in done.stderr
    assert done.returncode == 3


@pytest.mark.slow
def test_pipelines_of_a_cell_share_their_links_in_turns_and_train_the_same(tmp_path: Path) -> None:
    told = trained(
        tmp_path, "--no-namespaces", "--compare", "single", "--schedule", "atlas", pipelines=2, cell=2,
        train={"checkpoint": {"directory": "kept"}},
    )  # fmt: skip
    assert told["compare"]["single"]["parameter_difference"] == 0


@pytest.mark.slow
def test_a_rank_that_is_killed_in_a_step_costs_no_more_than_the_steps_since_the_checkpoint(
    tmp_path: Path,
) -> None:
    file = file_with_checkpoints(tmp_path, 2)
    with Live(str(file), "--no-namespaces", "--store", str(tmp_path / "s.db"), "--compare", "single") as run:
        run.until("step     1")
        [first], [second] = (run.ranks(name) for name in ("a/0/0", "b/0/1"))
        begun = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (first, second)]
        assert begun[0] == begun[1] and b"_unidle_local" in begun[0], "forked from one Python"
        run.until("step     5")
        os.kill(second, signal.SIGKILL)
        assert "b-0-1 died" in run.until("attempt 1 ended")
        assert "after step 3" in run.until("attempt 2: continues")
        assert run.end() == 0
    assert sorted(run.losses) == list(range(1, STEPS + 1))
    assert any("largest difference of 12 losses 0, of 360 parameters 0" in line for line in run.said)
    steps = runs.unidle("ledger", "--store", str(tmp_path / "s.db"))
    assert "replayed" in steps.stdout


@pytest.mark.slow
def test_a_run_that_is_started_again_goes_on_and_a_fresh_one_does_not(tmp_path: Path) -> None:
    """Killed whole, then by another schedule; the model is that of one process all the same."""
    file = file_with_checkpoints(tmp_path, 2)
    words = ("--no-namespaces", "--store", str(tmp_path / "s.db"))
    with Live(str(file), *words) as run:
        run.until("step     1")
        ranks = [pid for name in ("a/0/0", "b/0/1") for pid in run.ranks(name)]
        run.until("step     8")
        run.kill()
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
    again = runs.unidle("span", "run", str(file), *words, "--schedule", "gpipe", "--compare", "single")
    assert again.returncode == 0, again.stderr
    assert f"continues after step 6, from the checkpoint in {tmp_path / 'kept'}" in again.stdout
    assert "step     7" in again.stdout and "step     6" not in again.stdout
    assert "largest difference of 6 losses 0, of 360 parameters 0" in again.stdout
    done = runs.unidle("span", "run", str(file), *words)
    assert done.returncode == 0
    assert "is of step 12, and train.steps is 12: nothing is left to train" in done.stdout
    fresh = runs.unidle("span", "run", str(file), *words, "--fresh", "--steps", "4")
    assert fresh.returncode == 0
    assert "step     1" in fresh.stdout
    assert {path.name[:7] for path in (tmp_path / "kept").iterdir()} == {"step_00", "before-"}
    assert (tmp_path / "kept" / "step_0000000004").is_dir()


@needs.shaping
@pytest.mark.slow
def test_four_sites_in_namespaces_measure_what_the_file_says_of_their_links(tmp_path: Path) -> None:
    told = trained(
        tmp_path,
        "--namespaces",
        "--compare",
        "single,gloo",
        count=4,
        train={"checkpoint": {"directory": "kept"}, "pace": True, "optimizer": runs.SGD},
    )
    assert told["compare"]["single"]["parameter_difference"] == 0
    assert told["compare"]["gloo"]["step_ns"] > 0
    assert told["step_ns"]["measured"] > 0 and told["exposed_wan_ns"]["measured"] > 0


@needs.shaping
@pytest.mark.slow
@pytest.mark.nightly  # in CI: the same cut of ranks without a launcher (rank_span), and of a channel (rank_wan)
def test_a_link_that_is_cut_for_5_s_is_waited_for(tmp_path: Path) -> None:
    file = file_with_checkpoints(tmp_path, 3)
    with Live(str(file), "--namespaces", "--store", str(tmp_path / "s.db")) as run:
        run.until("step     4")
        run.cut("b-0-1", "c-0-2")
        signal.sigtimedwait([], 5)
        run.mend("b-0-1", "c-0-2")
        assert run.end() == 0
    assert sorted(run.losses) == list(range(1, STEPS + 1))
    assert any("succeeded after 1 attempt" in line for line in run.said)


@needs.shaping
@pytest.mark.slow
def test_a_link_that_is_cut_for_ever_is_planned_around_and_the_site_taken_back_when_it_answers(
    tmp_path: Path,
) -> None:
    file = file_with_checkpoints(tmp_path, 3, ms=60)
    with Live(
        str(file), "--namespaces", "--store", str(tmp_path / "s.db"), "--compare", "single", give_up_s=3
    ) as run:
        run.until("step     4")
        run.cut("b-0-1", "c-0-2")
        run.until("continues without c")
        run.until("all 2 devices are ready")
        run.mend("b-0-1", "c-0-2")
        run.until("c answers: taken in after step")
        run.until("all 3 devices are ready")
        assert run.end() == 0
    assert sorted(run.losses) == list(range(1, STEPS + 1))
    assert any("of 360 parameters 0" in line for line in run.said)
    logs = runs.unidle("logs", run.said[-1].split()[0], "--store", str(tmp_path / "s.db")).stdout
    assert "unidle span: c answers: taken in after step" in logs  # each rank's log has it, too


@needs.shaping
@pytest.mark.slow
@pytest.mark.nightly  # in CI: the way there and back over a chain, above; which order (span/test_span_reconsider.py, test_span_run_absent.py)
def test_a_site_that_another_no_longer_reaches_works_in_another_order_of_the_sites(tmp_path: Path) -> None:
    pairs = (("a", "b"), ("b", "c"), ("a", "c"))
    links = [{"from": a, "to": b, "latency_ms": 5, "capacity_gbps": 0.05} for a, b in pairs]
    file = file_with_checkpoints(tmp_path, 3, ms=60, links=links)
    data = json.loads(file.read_text())
    data["train"]["steps"] = 50
    file.write_text(json.dumps(data))
    words = ("--namespaces", "--store", str(tmp_path / "s.db"), "--compare", "single")
    with Live(str(file), *words, give_up_s=3) as run:
        run.until("step     4")
        run.cut("b-0-1", "c-0-2")
        lost = run.until("continues without ")[-1]
        assert lost in "bc"
        run.until("all 2 devices are ready")
        run.until(f"{lost} answers: taken in after step")
        told = run.until("attempt 3: continues after step")
        assert "in the order b - a - c" in told or "in the order c - a - b" in told
        run.until("all 3 devices are ready")
        assert run.end() == 0
    assert sorted(run.losses) == list(range(1, 51))
    assert any("of 360 parameters 0" in line for line in run.said)
    job = run.said[-1].split()[0]
    logs = runs.unidle("logs", job, "--store", str(tmp_path / "s.db")).stdout
    assert f"unidle span: {lost} answers: taken in after step" in logs  # each rank's log has it, too


@needs.shaping
@pytest.mark.slow
def test_a_site_in_the_middle_that_is_gone_for_ever_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    file = file_with_checkpoints(tmp_path, 3)
    data = json.loads(file.read_text())
    data |= {"memory_cap_bytes": 1000, "static_bytes": 600}
    file.write_text(json.dumps(data))
    with Live(str(file), "--namespaces", "--store", str(tmp_path / "s.db"), give_up_s=3) as run:
        run.until("step     4")
        run.cut("b-0-1", "c-0-2")
        assert run.end() == 3
    assert any(
        "without c a device would hold 1,328 bytes, 328 more than it may" in line
        or "more than it may" in line
        for line in run.said
    )
    assert any("failed" in line or "cancelled" in line for line in run.said)


@needs.shaping
@pytest.mark.slow
def test_a_link_that_becomes_slower_is_planned_around_and_changes_no_bit(tmp_path: Path) -> None:
    links = [{"from": "a", "to": "b", "latency_ms": 5, "capacity_gbps": 0.05}]
    file = file_with_checkpoints(tmp_path, 2, links=links, activation_bytes=40 * 128 * 8, microbatches=8)
    model = (
        (tmp_path / "model.py")
        .read_text()
        .replace("width=8", "width=128")
        .replace("(size, 8,", "(size, 128,")
    )
    (tmp_path / "model.py").write_text(model)
    data = json.loads(file.read_text())
    data["train"] |= {"microbatch": 40, "steps": MANY, "schedule": "1f1b"}
    file.write_text(json.dumps(data))
    words = ("--namespaces", "--store", str(tmp_path / "s.db"), "--replan", "4")
    with Live(str(file), *words) as run:
        run.until("step     2")
        run.slow("a-0-0", "b-0-1", 5)
        told = run.until("from the next checkpoint on")
        assert "transfers a-b take" in told
        changed = run.steps_of_attempt(2, 7)
        assert not any("attempt 2" in line and "1f1b" in line for line in run.said)
        run.stop()
    runs.goes_on_as_one_process(file, tmp_path / "s.db", changed, changed + 9)


@pytest.mark.slow
def test_a_site_that_becomes_slower_gives_layers_away_and_changes_no_bit(tmp_path: Path) -> None:
    """Its layers sleep, for its rank alone, as on a device that others use too."""
    times = {"forward": 40 * runs.MS, "backward": 10 * runs.MS, "weight": 10 * runs.MS}
    train = {**runs.TRAIN, "steps": MANY, "pace": True, "checkpoint": {"directory": "kept", "every": 4}}
    train["model"] = {**runs.TRAIN["model"], "arguments": {"layers": 12}}
    file = runs.written(tmp_path, runs.span(3, train=train, stage_ns=times))
    model = (tmp_path / "model.py").read_text()
    slow = f"""

class Shared(nn.Tanh):
    def forward(self, x):
        if "b/0/1" in sys.argv and os.path.exists({str(tmp_path / "slow")!r}):
            time.sleep(0.06)
        return super().forward(x)
"""
    model = "import os\nimport sys\nimport time\n" + model.replace("nn.Tanh()", "Shared()") + slow
    (tmp_path / "model.py").write_text(model)
    words = ("--no-namespaces", "--store", str(tmp_path / "s.db"), "--replan", "4")
    with Live(str(file), *words) as run:
        run.until("step     2")
        (tmp_path / "slow").touch()
        told = run.until("from the next checkpoint on")
        assert "stage 1 (b) takes" in told
        found = re.search(r"layers (\d+) (\d+) (\d+):", told)
        assert found is not None and int(found[2]) < 4 < int(found[1]), told
        changed = run.steps_of_attempt(2, 9)
        run.stop()
    (tmp_path / "slow").unlink()
    runs.goes_on_as_one_process(file, tmp_path / "s.db", changed, changed + 10)


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    file = file_with_checkpoints(tmp_path, 2)
    other = tmp_path / "other"
    other.mkdir()
    second = file_with_checkpoints(other, 2)
    with (
        Live(str(file), "--no-namespaces", "--store", str(tmp_path / "s.db")) as one,
        Live(str(second), "--no-namespaces", "--store", str(other / "s.db")) as two,
    ):
        assert (one.end(), two.end()) == (0, 0)
    assert one.losses == two.losses


@pytest.mark.slow
def test_launchers_of_two_sites_find_each_other_and_go_on_after_a_killed_rank(tmp_path: Path) -> None:
    file = file_with_checkpoints(tmp_path, 2, sites=runs.sites("ab"))
    env = {"UNIDLE_SPAN_SECRET": "of this test"}
    with (
        Live(str(file), "--site", "b", "--store", str(tmp_path / "b.db"), env=env) as second,
        Live(str(file), "--site", "a", "--store", str(tmp_path / "a.db"), env=env) as first,
    ):
        first.until("step     1")
        [rank] = second.ranks("b/0/1")
        first.until("step     4")
        os.kill(rank, signal.SIGKILL)
        first.until("attempt 2: continues after step 3")
        assert first.end() == 0
        assert second.end() == 0
    assert sorted(first.losses) == list(range(1, STEPS + 1))


def test_a_site_that_does_not_come_is_named(tmp_path: Path) -> None:
    file = runs.written(tmp_path, runs.span(sites=runs.sites("ab")))
    os.environ["UNIDLE_SPAN_SECRET"] = "of this test"
    try:
        done = runs.unidle(
            "span", "run", str(file), "--site", "a", "--wait", "1", "--store", str(tmp_path / "s.db")
        )
    finally:
        del os.environ["UNIDLE_SPAN_SECRET"]
    assert done.returncode == 3
    assert "b did not connect within 1 s" in done.stderr
    done = runs.unidle("span", "run", str(file), "--site", "a", "--store", str(tmp_path / "s.db"))
    assert done.returncode == 2
    assert "UNIDLE_SPAN_SECRET: is not set" in done.stderr

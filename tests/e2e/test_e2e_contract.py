"""What scripts rely on: the answers of each command about one job that was broken, resumed and finished."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from e2e import gangs
from e2e.commands import ask, rows, unidle

ROW_FIELDS = [
    "device", "slice", "start_ns", "end_ns", "leaf", "job", "attempt", "step", "share_ppm", "how", "observer",
    "revision",
]  # fmt: skip
SCRIPT = """
from=$(ls checkpoints 2>/dev/null | sort -n | tail -1); from=${from:-0}
mkdir -p checkpoints
for k in $(seq $((from + 1)) 6); do
  sleep 0.1; echo "step $k"
  if [ "$RANK" = 0 ] && [ $k = 3 ]; then echo state > checkpoints/.tmp; mv checkpoints/.tmp checkpoints/$k; sleep 1.2; fi
  if [ "$RANK$TORCHELASTIC_RESTART_COUNT$k" = 105 ]; then
    while [ ! -e checkpoints/3 ]; do sleep 0.05; done
    sleep 1.2; kill -KILL $$
  fi
done
[ "$RANK$TORCHELASTIC_RESTART_COUNT" != 00 ] || sleep 60
"""
JOB: dict[str, Any] = {
    "ranks": 2, "queue": "night", "user": "ada", "checkpoint": {"path": "checkpoints"}, "grace_s": 2,
    "progress": {"pattern": r"step (\d+)"}, "restart": {"max": 2, "backoff_s": 0.1, "on": ["signal"]},
    "price_per_device_hour": 3600,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def store(place: Path) -> Path:
    return place / "s.db"


@pytest.fixture(scope="module")
def answer(place: Path, store: Path) -> dict[str, Any]:
    """What ``unidle run --json`` said; the other commands are asked afterwards."""
    file = gangs.write_job(place / "train.yaml", SCRIPT, **JOB)
    done = unidle("run", file, "--store", store, "--cpu-devices", 4, "--progress", "off", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return gangs.last_line(done.stdout)


@pytest.fixture(scope="module")
def summary(answer: dict[str, Any], store: Path) -> dict[str, Any]:
    found = ask("ledger", "--store", store, "--by", "job,leaf")
    assert isinstance(found, dict)
    return found


def test_run_ends_with_one_json_object(answer: dict[str, Any]) -> None:
    assert list(answer) == ["job", "state", "attempts", "exit_codes", "steps", "report", "failure"]
    assert {k: answer[k] for k in ("state", "attempts", "exit_codes", "steps")} == {
        "state": "succeeded", "attempts": 2, "exit_codes": [0, 0], "steps": 6,
    }  # fmt: skip
    assert Path(answer["report"]).read_text().lstrip().lower().startswith("<!doctype html>")


def test_list_has_the_job_in_one_line(answer: dict[str, Any], store: Path) -> None:
    (line,) = ask("list", "--store", store)
    expected = {
        "job": answer["job"], "name": "train", "state": "succeeded", "attempts": 2, "ranks": 2, "devices": 2,
        "steps": 6, "user": "ada", "queue": "night", "reason": "all 2 ranks exited 0",
    }  # fmt: skip
    assert {key: line[key] for key in expected} == expected
    assert line["submitted_ns"] <= line["started_ns"] < line["ended_ns"]


def test_show_tells_how_each_rank_of_each_attempt_ended(answer: dict[str, Any], store: Path) -> None:
    first, second = ask("show", answer["job"], "--store", store)["runs"]
    assert (first["outcome"], first["ended_because"]) == (
        "failed",
        "rank 1 was killed by SIGKILL after step 5",
    )
    assert first["ranks"][1]["code"] == -9
    assert (first["durable_step"], second["first_step"], second["outcome"]) == (3, 4, "succeeded")
    assert [rank["slices"] for rank in second["ranks"]] == [["local/0"], ["local/1"]]


def test_explain_tells_each_decision_in_order(answer: dict[str, Any], store: Path) -> None:
    story = ask("explain", "train", "--store", store)
    assert [decision["what"] for decision in story["decisions"]] == [
        "submitted", "placed", "checked", "stop", "attempt failed", "again", "placed", "attempt succeeded", "succeeded",
    ]  # fmt: skip
    times = [decision["time_ns"] for decision in story["decisions"]]
    assert times == sorted(times)
    text = unidle("explain", "train", "--store", store).stdout.splitlines()
    assert text[0] == f"{answer['job']}  succeeded: all 2 ranks exited 0"
    dated = [line for line in text[1:] if re.match(r"  \d{4}-", line)]  # others say what could not be seen
    assert len(dated) == len(times) + len(story["predictions"])


def test_ledger_sums_to_the_capacity(summary: dict[str, Any]) -> None:
    window, leaves = summary["window"], summary["leaves"]
    assert summary["slices"] == 4
    assert summary["capacity_ns"] == 4 * (window["end_ns"] - window["start_ns"])
    assert sum(leaf["ns"] for leaf in leaves) == summary["capacity_ns"]
    assert {"useful", "replayed", "no_demand"} <= {leaf["leaf"] for leaf in leaves}
    assert all(set(leaf) == {"leaf", "group", "ns", "how"} for leaf in leaves)
    assert 0 < summary["ratios"]["ettr"] < summary["ratios"]["availability"] == 1


def test_job_pays_its_own_price(answer: dict[str, Any], store: Path) -> None:
    """At 3600 an hour a device second costs 1."""
    mine = ask("ledger", "--store", store, "--job", "train")
    assert mine["cost"]["total"] == pytest.approx(mine["capacity_ns"] / 1e9, rel=1e-4)


def test_groups_sum_to_the_capacity(summary: dict[str, Any], answer: dict[str, Any], store: Path) -> None:
    assert sum(group["ns"] for group in summary["groups"]) == summary["capacity_ns"]
    assert {group["job"] for group in summary["groups"]} == {answer["job"], None}
    other = ask("ledger", "--store", store, "--by", "queue,user,node,device,group,attempt")
    assert sum(group["ns"] for group in other["groups"]) == summary["capacity_ns"]
    assert {group["queue"] for group in other["groups"]} == {"night", None}
    filtered = ask("ledger", "--store", store, "--leaf", "useful", "--device", "local/0", "--by", "leaf")
    assert [group["leaf"] for group in filtered["groups"]] == ["useful"]


def test_a_grouping_named_twice_counts_once(answer: dict[str, Any], store: Path) -> None:
    once, twice = (unidle("ledger", "--store", store, "--by", by) for by in ("job", "job,job"))
    assert (once.returncode, once.stdout) == (twice.returncode, twice.stdout) == (0, once.stdout)
    assert answer["job"] in once.stdout


def test_a_filter_that_names_nothing_of_this_store_is_bad_input(answer: dict[str, Any], store: Path) -> None:
    assert unidle("ledger", "--store", store, "--queue", "night", "--user", "ada").returncode == 0
    for field in ("device", "node", "queue", "user", "leaf"):
        done = unidle("ledger", "--store", store, f"--{field}", "nope")
        assert done.returncode == 2
        assert field in done.stderr and "nope" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_rows_tile_the_window_of_every_slice(summary: dict[str, Any], store: Path) -> None:
    window = summary["window"]
    by_slice: dict[str, list[dict[str, Any]]] = {}
    for row in rows(store):
        assert list(row) == ROW_FIELDS
        by_slice.setdefault(row["slice"], []).append(row)
    assert len(by_slice) == 4
    for mine in by_slice.values():
        assert (mine[0]["start_ns"], mine[-1]["end_ns"]) == (window["start_ns"], window["end_ns"])
        assert all(a["end_ns"] == b["start_ns"] for a, b in pairwise(mine))


def test_windows_add_up_wherever_they_are_cut(summary: dict[str, Any], store: Path) -> None:
    start, end = summary["window"]["start_ns"], summary["window"]["end_ns"]
    cut = start + (end - start) // 3 + 1
    parts = [
        ask("ledger", "--store", store, "--end", cut),
        ask("ledger", "--store", store, "--start", cut),
    ]
    whole: dict[str, int] = {}
    for leaf in [leaf for part in parts for leaf in part["leaves"]]:
        whole[leaf["leaf"]] = whole.get(leaf["leaf"], 0) + leaf["ns"]
    expected: dict[str, int] = {}
    for leaf in summary["leaves"]:
        expected[leaf["leaf"]] = expected.get(leaf["leaf"], 0) + leaf["ns"]
    assert whole == expected
    last = ask("ledger", "--store", store, "--start", "1s")
    assert last["window"] == {"start_ns": end - 1_000_000_000, "end_ns": end}


def test_every_format_holds_the_same_rows(answer: dict[str, Any], store: Path, tmp_path: Path) -> None:
    listed = rows(store)
    text = unidle("ledger", "--store", store, "--format", "csv").stdout
    table = list(csv.DictReader(io.StringIO(text)))
    assert [list(row) for row in table[:1]] == [ROW_FIELDS]
    assert [row["start_ns"] for row in table] == [str(row["start_ns"]) for row in listed]
    parquet = tmp_path / "rows.parquet"
    assert unidle("ledger", "--store", store, "--format", "parquet", "-o", parquet).returncode == 0
    assert pl.read_parquet(parquet)["end_ns"].to_list() == [row["end_ns"] for row in listed]
    trace = json.loads(unidle("ledger", "--store", store, "--format", "perfetto").stdout)
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(listed)
    picture = unidle("ledger", "--store", store).stdout
    assert "free no_demand" in picture
    assert "lost replayed" in picture
    assert list(tmp_path.iterdir()) == [parquet]


def in_order(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By slice: sealed rows of all slices are told before those that are not."""
    return sorted(listed, key=lambda row: (row["slice"], row["start_ns"]))


def test_ledger_survives_export_import_and_compact(
    summary: dict[str, Any], answer: dict[str, Any], store: Path, tmp_path: Path
) -> None:
    before = in_order(rows(store))
    export, other = tmp_path / "log.jsonl", tmp_path / "other.db"
    assert unidle("store", "export", export, "--store", store).returncode == 0
    assert ask("store", "import", export, "--store", other)["events"] > 0
    again = unidle("store", "import", export, "--store", other)
    assert again.returncode == 4  # into an empty store only
    assert len(again.stderr.splitlines()) == 1
    assert in_order(rows(other)) == before
    assert ask("store", "compact", "--store", other)["after_bytes"] > 0
    assert in_order(rows(other)) == before
    assert ask("ledger", "--store", other, "--by", "job,leaf") == summary
    check = ask("store", "check", "--store", other)
    assert check["ok"]
    assert unidle("ledger", "--check", "--store", other).returncode == 0


def test_torn_export_is_refused_whole(answer: dict[str, Any], store: Path, tmp_path: Path) -> None:
    export, other = tmp_path / "log.jsonl", tmp_path / "other.db"
    unidle("store", "export", export, "--store", store)
    whole = export.read_bytes()
    export.write_bytes(whole[: len(whole) // 2])
    done = unidle("store", "import", export, "--store", other)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert gangs.jobs_of(other) == {}


def test_damaged_log_is_found_by_check(answer: dict[str, Any], store: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    content = store.read_bytes()
    at = content.index(b'"night"')
    broken.write_bytes(content[:at] + b'"noght"' + content[at + 7 :])
    done = unidle("store", "check", "--store", broken, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"]


def test_fleet_and_report_of_a_store(answer: dict[str, Any], store: Path, tmp_path: Path) -> None:
    seen = ask("fleet", "--store", store)
    assert [device["device"] for device in seen["devices"]] == [f"local/{k}" for k in range(4)]
    assert all(device["jobs"] == [] for device in seen["devices"])
    page = tmp_path / "page.html"
    assert ask("report", "train", "--store", store, "-o", page)["job"] == answer["job"]
    assert answer["job"] in page.read_text()


def test_declared_fleet_stands_for_several_nodes(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    node = "{{id: n{0}, devices: [{{kind: cpu, count: 2}}]}}"
    fleet.write_text("nodes: [" + ", ".join(node.format(k) for k in range(2)) + "]\n")
    script = 'echo "$RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE"'
    file = gangs.write_job(tmp_path / "spread.yaml", script, ranks=4)
    done = unidle("run", file, "--fleet", fleet, "--store", tmp_path / "s.db", "--json")
    assert done.returncode == 0, done.stderr
    logs = unidle("logs", "spread", "--store", tmp_path / "s.db").stdout
    assert sorted(logs.splitlines()) == ["[0] 0 0 0 4", "[1] 1 1 0 4", "[2] 2 0 1 4", "[3] 3 1 1 4"]
    too_many = unidle("run", "--ranks", 5, "--fleet", fleet, "--store", tmp_path / "s.db", "--", "true")
    assert too_many.returncode == 3

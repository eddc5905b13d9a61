"""``unidle span plan`` as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from e2e.commands import unidle
from span.reading import load_wanted, wanted_from_mapping
from unidle.span.files.train import load_run

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "span" / "plan-wan.yaml")
CONTRACT = {"sites", "layers", "cell", "microbatch", "schedule", "iteration_ns", "lower_bound_ns", "left_out"}


def test_json_has_the_figures_of_the_contract_and_what_is_written_is_simulated(tmp_path: Path) -> None:
    file = str(tmp_path / "chosen.yaml")
    done = unidle("span", "plan", EXAMPLE, "--objective", "time", "--json", "--write", file)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() >= CONTRACT
    assert all(each.keys() == {"site", "because"} for each in told["left_out"])
    assert sum(told["layers"]) == 48 and len(told["layers"]) == sum(site["stages"] for site in told["sites"])
    assert told["lower_bound_ns"] <= told["iteration_ns"]
    assert told["compared"][0]["schedule"] == "unidle" and len(told["compared"]) == 8
    assert {
        "iteration_ns",
        "utilisation",
        "exposed_wan_ns",
        "peak_memory_bytes",
        "cost_per_iteration",
    } < told["compared"][1].keys()
    again = json.loads(unidle("span", "simulate", file, "--schedule", told["schedule"], "--json").stdout)
    assert again["unidle"]["iteration_ns"] == told["iteration_ns"]


def test_a_file_with_a_layout_can_be_planned_anew() -> None:
    """Its batch is that of its pipelines; sites without a number have the devices that their stages need."""
    file = str(Path(EXAMPLE).with_name("three-sites.yaml"))
    data = yaml.safe_load(Path(file).read_text())
    for site in data["sites"]:
        del site["gpus"]
    wanted = wanted_from_mapping(data)
    assert wanted == load_wanted(file)
    assert wanted.batch == 4 * 16 and [offer.gpus for offer in wanted.offers] == [8, 8, 8]
    assert wanted.state_bytes == 0 and wanted.static_bytes == 8 * 10**9
    assert replace(wanted, static_bytes=0, state_bytes=16 * 12 * 4096**2) == wanted_from_mapping(
        data | {"static_bytes": 0}
    )
    done = unidle("span", "plan", file, "--json")
    assert done.returncode == 0, done.stderr
    there = json.loads(unidle("span", "simulate", file, "--schedule", "unidle", "--json").stdout)
    assert json.loads(done.stdout)["iteration_ns"] <= there["unidle"]["iteration_ns"]


def test_the_table_says_what_is_left_out_and_what_renting_changes() -> None:
    done = unidle(
        "span",
        "plan",
        EXAMPLE,
        "--objective",
        "cost",
        "--rent",
        "oregon:192:2.0",
        "--schedule",
        "zb-h1",
        "--no-compare",
    )
    assert done.returncode == 0, done.stderr
    assert "Left out: singapore" in done.stdout and "Without what is rented" in done.stdout
    assert "at equal memory" not in done.stdout


def test_a_plan_without_a_link_and_with_a_slow_site_is_shown_beside_that_of_the_file() -> None:
    done = unidle(
        "span",
        "plan",
        EXAMPLE,
        "--without-link",
        "virginia-oregon",
        "--slow-site",
        "oregon:4",
        "--schedule",
        "zb-h1",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {site["name"] for site in told["base"]["sites"]} != {site["name"] for site in told["sites"]}
    assert told["base"]["iteration_ns"] < told["iteration_ns"]


def test_spot_devices_are_told_as_expected_time_and_money(tmp_path: Path) -> None:
    data = yaml.safe_load(Path(EXAMPLE).read_text()) | {
        "checkpoint_every_s": 600,
        "checkpoint_s": 20,
        "restart_s": 300,
    }
    for site in data["sites"]:
        site["revocations_per_hour"] = 0.01
    file = tmp_path / "spot.yaml"
    file.write_text(yaml.safe_dump(data))
    written = str(tmp_path / "chosen.json")
    command = ("span", "plan", str(file), "--schedule", "zb-h1", "--no-compare", "--write", written)
    told = json.loads(unidle(*command, "--json").stdout)
    devices = sum(site["gpus"] for site in told["sites"])
    expected = told["expected"]
    assert expected["revocations_per_hour"] == 0.01 * devices
    assert expected["iteration_ns"] > told["iteration_ns"] * 620 / 600
    shown = unidle("span", "simulate", written, "--schedule", "zb-h1")
    assert (
        f"{expected['iteration_ns'] / 1e6:,.3f} ms expected" in shown.stdout
        and "best about every" in shown.stdout
    )


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    for words in (
        (EXAMPLE, "--objective", "both"),
        (EXAMPLE, "--planner", "best"),
        (EXAMPLE, "--rent", "x"),
        (str(tmp_path / "none.yaml"),),
    ):
        done = unidle("span", "plan", *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_written_plan_keeps_what_is_to_be_trained_and_where_sites_are(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/model.py").write_text("def build(): ...\ndef batch(*_): ...\ndef loss(*_): ...\n")
    train = {
        "model": {"build": "model.py:build", "arguments": {"name": "x.py:y"}}, "data": "model.py:batch", "loss": "model.py:loss",
        "steps": 3, "cut": [3, 3], "checkpoint": {"directory": "kept"},
    }  # fmt: skip
    data = {
        "model": {"layers": 6, "hidden": 64, "sequence": 8}, "batch": 4, "device_tflops": 1, "train": train,
        "sites": [{"name": "a", "gpus": 4, "hosts": ["10.0.0.1"]}, {"name": "b", "gpus": 2}],
        "links": [{"from": "a", "to": "b", "latency_ms": 1, "capacity_gbps": 1}],
    }  # fmt: skip
    (tmp_path / "in/span.json").write_text(json.dumps(data))
    done = unidle(
        "span", "plan", str(tmp_path / "in/span.json"), "--write", str(tmp_path / "out.json"), "--json"
    )
    layers = json.loads(done.stdout)["layers"]
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["train"]["model"] == {
        "build": f"{tmp_path}/in/model.py:build", "arguments": {"name": "x.py:y"},
    }  # fmt: skip
    assert written["train"]["checkpoint"] == {"directory": f"{tmp_path}/in/kept"}
    assert written["train"]["cut"] == written["model"]["layers"] and sum(written["train"]["cut"]) == 6
    assert [site.get("hosts") for site in written["sites"] if site["name"] == "a"] == [["10.0.0.1"]]
    found = load_run(tmp_path / "out.json")
    assert found.training.cut == tuple(written["train"]["cut"]) and layers

"""The plan that ranks follow: made from the simulated schedule, and what is left when sites are lost."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from span.reading import run_from_mapping
from span_run import runs
from unidle.errors import BadInput, CannotRun
from unidle.span.files.train import RunRequest
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.plan.run_plan import AttemptKey, flows_of, orders, plan_of
from unidle.span.replan.survivors import corrected, cut_off, without
from unidle.span.run.hosts import devices_of, hosts_of_site, launcher_address, launcher_of, launchers
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.schedules import SCHEDULES


def wanted(place: Path, train: dict[str, Any] | None = None, **fields: Any) -> RunRequest:
    (place / "model.py").write_text(runs.MODEL)
    return run_from_mapping(runs.span(**{"train": {**runs.TRAIN, **(train or {})}, **fields}), str(place))


def plan(found: RunRequest, cut: tuple[int, ...] | None = None) -> dict[str, Any]:
    addresses = {name: ("127.0.0.1", 30000 + k) for k, name in enumerate(devices_of(found.setting))}
    names = dict(zip(addresses, addresses, strict=True))
    made = plan_of(
        found.training, simulate(found.setting, found.schedule), addresses, AttemptKey("r", 2, 5), cut, names
    )
    return json.loads(json.dumps(made))  # what is not plain data fails here


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_gives_each_device_each_operation_once_in_the_simulated_order(
    tmp_path: Path, name: str
) -> None:
    found = wanted(
        tmp_path,
        {"schedule": name},
        sites=[{"name": "a", "stages": 2}, {"name": "b", "stages": 1}],
        stages=3,
        pipelines=2,
        cell=2,
    )
    made = plan(found)
    chunks = made["chunks"]
    assert [d["device"] for d in made["devices"]] == devices_of(found.setting)
    rows = list(simulate(found.setting, found.schedule).rows())
    for device in made["devices"]:
        order = [tuple(step) for step in device["order"]]
        for op in "FBW":
            assert sorted(o for o in order if o[0] == op) == [
                (op, m, c) for m in range(4) for c in range(chunks)
            ]
        for op, m, c in order:
            if op == "B":
                assert order.index(("F", m, c)) < order.index(("B", m, c)) < order.index(("W", m, c))
        mine = [r for r in rows if r.device_or_link == device["device"] and r.op in "FBWR"]
        assert order == [(r.op, r.microbatch, r.chunk) for r in sorted(mine, key=lambda r: r.start_ns)]
    assert made["microbatches"] == [4, 4]
    assert {(link["from"], link["to"], link["wan"]) for link in made["links"]} >= {
        (0, 1, False),
        (1, 2, True),
    }


def test_paced_devices_get_the_times_of_the_file_and_links_what_the_schedule_chose(tmp_path: Path) -> None:
    made = plan(wanted(tmp_path, {"pace": True, "checkpoint": {"directory": "c"}}), (3, 2))
    assert made["pace"]["forward_ns"] == [2 * runs.MS] * 2
    assert made["model"]["cut"] == [[0, 3], [3, 5]]
    assert made["checkpoint"] == {"directory": str(tmp_path / "c"), "every": 10, "keep": 2}
    assert (made["attempt"], made["resume"], made["run"]) == (2, 5, "r")
    assert "secret" not in json.dumps(made).lower()


def test_measured_layers_are_cut_as_the_file_says_and_each_link_has_chunks_of_its_own_size(
    tmp_path: Path,
) -> None:
    layers = [
        {
            "forward_ns": runs.MS,
            "backward_ns": runs.MS,
            "weight_ns": weight,
            "kept_bytes": 8,
            "input_bytes": size,
        }
        for weight, size in ((0, 64), (runs.MS, 64), (runs.MS, 800_000), (runs.MS, 64), (runs.MS, 80_000))
    ]
    sites = [{"name": name, "stages": 1} for name in "abc"]
    links = [
        {"from": a, "to": b, "latency_ms": 1, "capacity_gbps": 1, "flow_mbps": 375} for a, b in ("ab", "bc")
    ]
    measured: dict[str, Any] = {
        "stage_ns": None,
        "activation_bytes": None,
        "layers": layers,
        "measured": {"microbatch": 2},
    }
    made = plan(wanted(tmp_path, sites=sites, links=links, stages=3, cut=[2, 2, 1], **measured), (2, 2, 1))
    assert made["model"]["cut"] == [[0, 2], [2, 4], [4, 5]]
    assert made["microbatch"] == 2
    first, second = (link["chunk_bytes"] * link["flows"] for link in made["links"])
    assert first == pytest.approx(10 * second, rel=0.01)
    assert first == 800_000
    assert wanted(tmp_path, sites=sites, links=links, stages=3, cut=[2, 2, 1], **measured).training.cut == (
        2,
        2,
        1,
    )


def test_a_real_run_never_plans_with_nodes_that_do_not_send_for_others(tmp_path: Path) -> None:
    sites = [{"name": "a", "stages": 2}, {"name": "b", "stages": 2}]
    links = [{"from": "a", "to": "b", "latency_ms": 1, "capacity_gbps": 0.0001}]
    found = wanted(tmp_path, sites=sites, stages=4, links=links, activation_bytes=4096)
    assert simulate(replace(found.setting, wide=True), found.schedule).program.share.wide
    assert not simulate(found.setting, found.schedule).program.share.wide


def test_many_flows_where_one_is_held_back_by_latency() -> None:
    from unidle.span.model.link import Path as Way

    assert flows_of(Way((WanLink("a", "b", 40 * runs.MS, 5.0),))) == 25
    assert flows_of(Way((WanLink("a", "b", 0, 5.0),))) == 4
    assert flows_of(Way((WanLink("a", "b", 40 * runs.MS, 500.0),))) == 64


CHAIN = Setting(
    (Stage(10, 10, 10, 10, 100, 7),) * 4, 4, tuple(Site(name, 1) for name in "abcd"),
    tuple(WanLink(a, b, 5, 1.0) for a, b in pairwise("abcd")), input_bytes=10, static_bytes=60, memory_cap_bytes=250,
)  # fmt: skip


def test_layers_of_a_lost_site_move_to_the_others_and_times_with_them() -> None:
    left = without(CHAIN, (2, 2, 2, 2), {"d"})
    assert left.cut == (3, 3, 2)
    assert [stage.forward_ns for stage in left.setting.stages] == [15, 15, 10]
    assert left.setting.static_bytes == 90
    assert [site.name for site in left.setting.sites] == ["a", "b", "c"]
    assert all({link.a, link.b}.isdisjoint({"d"}) for link in left.setting.links)


def test_devices_behind_a_lost_site_keep_the_names_of_their_ranks() -> None:
    around = replace(CHAIN, links=(*CHAIN.links, WanLink("a", "c", 5, 1.0)))
    left = without(around, (2, 2, 2, 2), {"b"})
    assert left.names == {"a/0/0": "a/0/0", "c/0/1": "c/0/2", "d/0/2": "d/0/3"}
    assert left.setting.path(0, 1) is not None


def test_what_does_not_fit_says_by_how_many_bytes() -> None:
    with pytest.raises(CannotRun, match=r"without c, d a device would hold 330 bytes, 80 more than it may"):
        without(CHAIN, (2, 2, 2, 2), {"c", "d"})


def test_neighbours_without_a_link_are_an_error_that_names_them() -> None:
    with pytest.raises(CannotRun, match=r"without b there is no link between a and c"):
        without(CHAIN, None, {"b"})
    with pytest.raises(CannotRun, match="no site is left"):
        without(CHAIN, None, set("abcd"))


def test_the_lighter_part_is_left_out_when_a_link_is_gone() -> None:
    sites = list("abcd")
    assert cut_off(CHAIN.links, sites, "c", "d", [1] * 4) == {"d"}
    assert cut_off(CHAIN.links, sites, "a", "b", [1] * 4) == {"a"}
    assert cut_off(CHAIN.links, sites, "b", "c", [1] * 4) == {"c", "d"}
    assert cut_off(CHAIN.links, sites, "b", "c", [1, 1, 2, 2]) == {"a", "b"}
    assert cut_off((*CHAIN.links, WanLink("a", "c", 1, 1.0)), sites, "b", "c", [1] * 4) == {"c"}


def test_links_measured_slower_take_so_long_in_the_corrected_setting() -> None:
    slow = corrected(CHAIN, {("a", "b"): 800})
    assert slow.links[0].rate_gbps(None) == pytest.approx(0.1)
    assert slow.links[1:] == CHAIN.links[1:]


def test_what_was_measured_chooses_the_order_and_the_file_says_how_links_and_devices_are_used(
    tmp_path: Path,
) -> None:
    """A size that the file states wrongly makes links look slow: senders held to that would be."""
    found = wanted(tmp_path, {"pace": True}, activation_bytes=1)
    slow = corrected(found.setting, {("a", "b"): 50_000_000})
    slow = replace(slow, stages=tuple(replace(stage, forward_ns=9 * runs.MS) for stage in slow.stages))
    addresses = {name: ("127.0.0.1", 30000 + k) for k, name in enumerate(devices_of(found.setting))}
    names = dict(zip(addresses, addresses, strict=True))
    modelled = simulate(slow, found.schedule)
    made = plan_of(found.training, modelled, addresses, AttemptKey("r"), None, names, stated=found.setting)
    assert [link["rate_bytes_per_s"] for link in made["links"]] == [125_000_000]
    assert made["pace"]["forward_ns"] == [2 * runs.MS] * 2
    orders_ = {device["device"]: [tuple(step) for step in device["order"]] for device in made["devices"]}
    assert orders_ == orders(modelled)


def test_devices_of_a_fleet_listen_behind_their_sites_launcher(tmp_path: Path) -> None:
    sites = [
        {"name": "a", "stages": 1, "hosts": ["10.0.0.1:30000"]},
        {"name": "b", "stages": 1, "hosts": ["h1", "h2:31000"]},
    ]
    found = wanted(tmp_path, sites=sites, pipelines=2)
    setting, hosts = found.setting, found.training.hosts
    ground = hosts_of_site(setting, hosts, "b@h2:31000", "cpu")
    assert dict(ground.addresses) == {
        "a/0/0": ("10.0.0.1", 30001), "a/1/0": ("10.0.0.1", 30002), "b/0/1": ("h1", 29401), "b/1/1": ("h2", 31002),
    }  # fmt: skip
    assert [node["id"] for node in ground.nodes] == ["b-1-1"]
    assert launchers(setting, hosts) == {"a": ["a/0/0", "a/1/0"], "b@h1": ["b/0/1"], "b@h2:31000": ["b/1/1"]}
    assert launcher_address(setting, hosts) == ("10.0.0.1", 30000)
    assert launcher_of(setting, hosts, "a", None) == ("a", ["a", "b@h1", "b@h2:31000"])
    assert launcher_of(setting, hosts, "a", "10.0.0.1:30000")[0] == "a"
    assert launcher_of(setting, hosts, "b", "h1")[0] == "b@h1"
    for site, host, said in (
        ("c", None, r"--site: there is no such site.*one of a, b"),
        ("b", None, r"--host: b has 2 hosts.*set --host to one of h1, h2:31000"),
        ("b", "h3", r"--host: is no host of b.*one of h1, h2:31000"),
    ):
        with pytest.raises(BadInput, match=said):
            launcher_of(setting, hosts, site, host)
    with pytest.raises(BadInput, match="site b has none"):
        launchers(setting, {"a": ("x",)})
    assert orders(simulate(found.setting, found.schedule)).keys() == set(devices_of(found.setting))

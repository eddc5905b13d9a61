"""Several clusters: scenarios of dispatch, and what a summary promises against what the scheduler does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from place.trees import fleets
from unidle.events import types as ev
from unidle.files.clusters import load_summary, summary_as_json
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, RankPlace, Reason, Topology
from unidle.place.dispatch import judge, ranked
from unidle.place.explain import GangRefusal
from unidle.place.scheduler import Scheduler
from unidle.place.summary import summary_of
from unidle.view.fold import apply
from unidle.view.placement_input import view_of
from unidle.view.state import View

NOW = 1_000_000_000
SCENARIOS = yaml.safe_load(
    (Path(__file__).parents[1] / "scenarios" / "clusters" / "dispatch.yaml").read_text()
)


def tell(view: View, event: ev.Event) -> None:
    apply(view, event, view.seq + 1, NOW)


def hold(view: View, node: str, count: int, estimate_s: float | None) -> None:
    """A job that runs on the first devices of a node."""
    queue = view.fleet.queues[0].name if view.fleet.queues else "default"
    spec = JobSpec(("x",), devices_per_rank=count, device="gpu", estimate_s=estimate_s, queue=queue)
    tell(view, ev.JobSubmitted(f"on-{node}", spec))
    devices = next(n for n in view.fleet.nodes if n.id == node).devices[:count]
    place = RankPlace(0, node, tuple(device.id for device in devices))
    tell(view, ev.AttemptPlaced(f"on-{node}", 1, (place,), Reason("test", "")))


def view_from(cluster: Mapping[str, Any]) -> View:
    own = {"taken", "ends_in_s"}
    view = view_of(fleet_from_mapping({k: v for k, v in cluster.items() if k not in own}, "test"))
    for node, count in cluster.get("taken", {}).items():
        hold(view, node, count, cluster.get("ends_in_s"))
    return view


@pytest.mark.parametrize("scene", SCENARIOS, ids=lambda scene: scene["name"])
def test_dispatch_scenario(scene: dict[str, Any]) -> None:
    spec = job_from_mapping({"command": ["x"], **scene["job"]}, "test", ".")
    found = ranked(
        [judge(name, summary_of(view_from(one), NOW), spec) for name, one in scene["clusters"].items()],
        scene.get("prefer", "start"),
    )
    assert [[verdict.cluster, verdict.state] for verdict in found] == scene["expected"]
    assert all(verdict.because.text for verdict in found)


def widened(fleet: Fleet, gpus: int) -> Fleet:
    """The same tree with nodes of several GPUs, and one fabric."""
    nodes = tuple(
        replace(
            node, fabric=None, devices=tuple(Device(f"{node.id}/{k}", node.id, k, "gpu") for k in range(gpus))
        )
        for node in fleet.nodes
    )
    return replace(fleet, nodes=nodes, tiers=tuple(replace(tier, fabric=None) for tier in fleet.tiers))


@given(fleets(), st.data())
@settings(max_examples=150, deadline=None)
def test_what_a_summary_says_of_a_gang_is_what_the_scheduler_does(tree: Fleet, data: st.DataObject) -> None:
    fleet = widened(tree, 4)
    view = view_of(fleet)
    for node in fleet.nodes:
        if count := data.draw(st.integers(0, 4)):
            hold(view, node.id, count, None)
    require = data.draw(st.sampled_from([None, "node", "leaf", "spine"]))
    spec = JobSpec(
        ("x",), ranks=data.draw(st.integers(1, 12)), devices_per_rank=data.draw(st.integers(1, 4)), device="gpu",
        topology=Topology(require=require) if require else None,
    )  # fmt: skip
    verdict = judge("c", summary_of(view, NOW), spec)
    scheduler = Scheduler()
    assert (verdict.state == "now") == (not isinstance(scheduler.try_one(view, spec), GangRefusal))
    assert (verdict.state == "never") == (not scheduler.ever(view, spec))


def test_a_summary_of_ten_thousand_nodes_is_small_and_comes_back_from_a_file(tmp_path: Path) -> None:
    tiers = (Tier("s", "site"), *(Tier(f"l{k}", "leaf", "s") for k in range(625)))
    nodes = tuple(
        Node(
            f"n{k}", f"l{k // 16}", tuple(Device(f"n{k}/{g}", f"n{k}", g, "gpu", "H100") for g in range(8)),
            labels={"kubernetes.io/hostname": f"n{k}", "pool": "ab"[k % 2]},
        )
        for k in range(10_000)
    )  # fmt: skip
    view = view_of(Fleet(tiers, nodes))
    for k in range(0, 10_000, 7):
        hold(view, f"n{k}", 1 + k % 8, 3600)
    summary = summary_of(view, NOW)
    assert summary.hidden == ("kubernetes.io/hostname",)
    written = summary_as_json(summary)
    assert len(written) < 200_000
    path = tmp_path / "c.json"
    path.write_bytes(written)
    assert load_summary(path) == summary
    free = sum(slots.free.bit_count() for slots in view.occupancy.nodes["gpu"])
    stock = [s for d in summary.tiers[-1].domains for s in d.stock]
    assert sum(s.free * s.nodes for s in stock) == free
    assert sum(release.slices for release in summary.releases) == 80_000 - free


def test_jobs_that_the_scheduler_has_not_seen_take_their_room_from_the_next() -> None:
    view = view_of(fleet_from_mapping({"nodes": [{"id": "a", "devices": {"count": 8, "kind": "gpu"}}]}, "t"))
    spec = JobSpec(("x",), ranks=8, device="gpu")
    assert judge("c", summary_of(view, NOW), spec).state == "now"
    tell(view, ev.JobSubmitted("first", spec))
    assert judge("c", summary_of(view, NOW), spec).state == "later"


def test_a_part_costs_what_it_counts_and_not_a_whole_device() -> None:
    fleet = fleet_from_mapping(
        {
            "nodes": [{"id": "n", "devices": {"count": 2, "kind": "gpu", "model": "H100", "memory": "80GiB",
                                              "share": {"modes": ["mps"]}}}],
            "prices": {"H100": 4.0},
        }, "test",
    )  # fmt: skip
    summary = summary_of(view_of(fleet), NOW)
    part = {"command": ["x"], "ranks": 2, "share": {"fraction": 0.25}}
    assert judge("c", summary, job_from_mapping(part, "test", ".")).cost == 2 * 1.0
    assert (
        judge(
            "c", summary, job_from_mapping({"command": ["x"], "ranks": 2, "device": "gpu"}, "test", ".")
        ).cost
        == 8.0
    )


def test_jobs_that_can_never_start_are_no_demand_in_a_summary() -> None:
    view = view_of(
        fleet_from_mapping({"nodes": [{"id": "n0", "devices": {"count": 2, "kind": "gpu"}}]}, "test")
    )
    for name, ranks in (("fits", 2), ("never", 5), ("new", 1)):
        tell(view, ev.JobSubmitted(name, JobSpec(("x",), ranks=ranks, device="gpu")))
    tell(view, ev.JobJudged("fits", Reason("no_fit", "")))
    tell(view, ev.JobJudged("never", Reason("never_fits", "")))
    summary = summary_of(view, NOW)
    assert (summary.waiting, summary.pending) == ({"gpu": 2}, {"gpu": 1})


def test_the_domain_that_a_gang_fills_most_counts_not_the_emptiest() -> None:
    clusters = {
        "even": {"nodes": [{"id": "b", "devices": {"count": 8, "kind": "gpu"}}], "taken": {"b": 4}},
        "mixed": {"nodes": [{"id": "a[1-2]", "devices": {"count": 8, "kind": "gpu"}}], "taken": {"a1": 6}},
    }
    spec = JobSpec(("x",), ranks=2, device="gpu")
    found = {name: judge(name, summary_of(view_from(each), NOW), spec) for name, each in clusters.items()}
    assert found["mixed"].because.figures["ranks"] == 2
    assert found["even"].because.figures["ranks"] == 4

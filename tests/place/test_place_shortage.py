"""What a refusal says: which wish leaves how many devices, what a rank needs of one node, and of which devices it speaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from place.test_place_first_fit import view_of
from unidle.files.fleet import fleet_from_mapping
from unidle.fleet import Fleet
from unidle.jobs import Hardware, JobSpec, Requests, Select, Share, Topology, Where
from unidle.place.explain import GangRefusal, wanted
from unidle.place.scheduler import Scheduler


def fleet(**more: object) -> Fleet:
    nodes = [
        {"id": "h[1-2]", "devices": {"count": 8, "kind": "gpu", "model": "H100"}, "labels": {"pool": "a"}},
        {"id": "t1", "devices": {"count": 8, "kind": "gpu", "model": "H100"}, "taints": ["spot"]},
        {"id": "m1", "devices": {"count": 8, "kind": "gpu", "model": "MI300X", "vendor": "amd"}},
        {"id": "c[1-4]", "cpus": 16, "devices": {"count": 16, "kind": "cpu"}},
    ]
    return fleet_from_mapping({"nodes": nodes, **more}, "test")


def job(ranks: int, **more: object) -> JobSpec:
    return replace(JobSpec(("x",), ranks=ranks), **more)


def said(spec: JobSpec, on: Fleet | None = None) -> str:
    answer = Scheduler().try_one(view_of(on or fleet()), spec)
    assert isinstance(answer, GangRefusal)
    assert answer.because.code == "never_fits"
    return answer.because.text.removesuffix(": it can never start here")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (job(1, where=Where(Select(("H999",)))), "of 32 GPUs, models leaves 0"),
        (job(1, where=Where(Select(("H100",)), labels={"pool": "b"})), "of 32 GPUs, models leaves 24, then node_labels leaves 0"),
        (job(17, where=Where(Select(("H100",)))), "of 32 GPUs, models leaves 24, then tolerate leaves 16"),
        (job(1, where=Where(uuids=Select(("GPU-nobody",)))), "of 32 GPUs, uuids leaves 0"),
        (job(9, device="gpu", hardware=Hardware(vendor="amd")), "of 32 GPUs, hardware.vendor leaves 8"),
        (job(1, device="cpu", where=Where(Select(("H100",)))), "of 64 CPU devices, models leaves 0"),
    ],
)  # fmt: skip
def test_each_wish_that_leaves_devices_out_is_counted(spec: JobSpec, text: str) -> None:
    assert f"({text})" in said(spec)


def test_both_ways_to_have_parts_are_named_where_the_fleet_has_neither() -> None:
    text = said(job(1, device="gpu", share=Share(compute_ppm=500_000)))
    assert text.startswith(
        "needs 1 part of a GPU (share or slices_ppm in the fleet file) with at least 50 % of it, and the fleet has 0"
    )


def test_a_job_that_may_have_any_device_hears_of_those_that_come_nearest() -> None:
    joined = fleet(tiers=[{"id": "s", "kind": "site", "fabric": "roce"}])
    over = job(17, topology=Topology(fabric="roce"), where=Where(Select(("H100",))))
    assert said(over, joined).startswith("needs 17 GPUs, and the fleet has 16 that it may use")
    on_one = job(20, device="gpu", topology=Topology(require="node"), where=Where(tolerate=("spot",)))
    assert "at most 8 of 20 ranks fit" in said(on_one, joined)


def test_a_gang_too_large_for_each_vendor_is_told_that_it_is_on_one() -> None:
    assert said(job(70, device="gpu")).endswith("; a gang is on GPUs of one vendor")


def test_what_a_rank_needs_of_one_node_is_named_where_devices_would_suffice() -> None:
    cores = job(30, device="cpu", requests=Requests(2.5, 1 << 30))
    assert said(cores) == (
        "needs room for 30 ranks with 1 CPU device, 2.5 cores and 1 GiB of memory each on one node, "
        "and the empty fleet has room for 24"
    )
    wide = job(4, devices_per_rank=5, where=Where(Select(("H100",)), tolerate=("spot",)))
    assert said(wide).startswith(
        "needs room for 4 ranks with 5 GPUs each on one node, and the empty fleet has room for 3"
    )


def test_what_others_hold_is_not_taken_for_devices_that_are_in_use() -> None:
    on = fleet_from_mapping(
        {"nodes": [{"id": "c[1-2]", "cpus": 4, "devices": {"count": 4, "kind": "cpu"}}]}, "test"
    )
    first = job(1, device="cpu", requests=Requests(3.0))
    view = view_of(on, first, first)
    policy = Scheduler()
    from place.test_place_node_order import tell
    from unidle.events import types as ev

    for place in policy.decide(view, 1).places:
        tell(view, ev.AttemptPlaced(place.job, 1, place.places, place.because))
    answer = policy.why_not(view, first)
    assert answer is not None
    assert answer.text == (
        "needs room for 1 rank with 1 CPU device and 3 cores each on one node, and the fleet now has room for 0; "
        "6 of 8 devices are free"
    )


def test_a_tier_that_the_fleet_does_not_have_is_not_laid_on_a_model() -> None:
    assert said(job(2, topology=Topology(require="rack"))).endswith("it has node, site")


def test_a_part_by_profile_is_named_by_it() -> None:
    assert wanted(job(2, share=Share(profile="1g.10gb")), "gpu").endswith("of MIG profile 1g.10gb")

"""Shares of one GPU add up, whatever was asked for."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.fleet import PART_MODES, WHOLE_PPM, CutMode, Device, Node, PartMode
from unidle.jobs import Select, Share, ShareMode, Where
from unidle.share.mig_models import GIB, Instance, mig_models
from unidle.share.modes import (
    GPU_MODES,
    GUARANTEES,
    MPS_CLIENTS,
    GpuPart,
    Mode,
    Oversubscription,
    PartPlan,
    cpu_quota,
    cut,
    mps_environment,
    shares_of,
)
from unidle.share.refusal import PartRefused
from unidle.share.select import may_use

H100 = next(m for m in mig_models() if m.name == "H100 80GB")
GPU = Device("n/0", "n", 0, "gpu", "NVIDIA H100 80GB HBM3", "GPU-6b1e0001", 80 * GIB)
HALF = Share(compute_ppm=500_000)


def made(mode: Mode, *shares: Share, over: Oversubscription | None = None, gpu: Device = GPU) -> PartPlan:
    found = cut(gpu, mode, shares, over or Oversubscription(), H100)
    assert isinstance(found, PartPlan), found
    return found


def refusal(mode: Mode, *shares: Share, over: Oversubscription | None = None, gpu: Device = GPU) -> str:
    found = cut(gpu, mode, shares, over or Oversubscription(), H100)
    assert isinstance(found, PartRefused), found
    return found.because.code


def test_what_no_one_asked_for_is_a_part_of_its_own() -> None:
    found = made("mps", HALF, Share(compute_ppm=200_000, memory_bytes=8 * GIB))
    assert found.slices_ppm == (500_000, 200_000, 300_000)
    assert [p.rest for p in found.parts] == [False, False, True]
    assert [p.memory_bytes for p in found.parts] == [40 * GIB, 8 * GIB, 0]
    assert (found.compute_promised_ppm, found.memory_promised_ppm) == (700_000, 600_000)


def test_memory_alone_implies_as_much_compute() -> None:
    part = made("time", Share(memory_bytes=20 * GIB)).parts[0]
    assert (part.compute_ppm, part.memory_ppm) == (250_000, 250_000)


def test_promises_beyond_the_whole_need_a_stated_factor() -> None:
    assert refusal("mps", HALF, HALF, HALF) == "oversubscribed"
    assert refusal("mps", HALF, HALF, HALF, over=Oversubscription(compute_ppm=1_500_000)) == "oversubscribed"
    over = Oversubscription(compute_ppm=1_500_000, memory_ppm=1_500_000)
    found = made("mps", HALF, HALF, HALF, over=over)
    assert found.compute_promised_ppm == 1_500_000
    assert found.slices_ppm == (333_334, 333_333, 333_333)
    assert [p.compute_ppm for p in found.parts] == [500_000] * 3


def test_mig_parts_are_instances_and_the_rest_is_what_no_instance_covers() -> None:
    found = made("mig", Share(profile="3g.40gb"), Share(profile="3g.40gb"))
    assert [p.instance for p in found.parts[:2]] == [Instance("3g.40gb", 0), Instance("3g.40gb", 4)]
    assert sum(found.slices_ppm) == WHOLE_PPM and found.parts[2].rest
    full = made("mig", Share(profile="4g.40gb"), Share(profile="3g.40gb"))
    assert len(full.parts) == 2 and sum(full.slices_ppm) == WHOLE_PPM


def test_a_share_without_a_profile_gets_the_smallest_instance_that_has_as_much() -> None:
    for share, profile in (
        (Share(compute_ppm=100_000), "1g.10gb"),
        (Share(memory_bytes=15 * GIB), "1g.20gb"),
        (Share(compute_ppm=280_000), "2g.20gb"),
        (Share(compute_ppm=500_000), "4g.40gb"),
        (Share(memory_bytes=60 * GIB), "7g.80gb"),
    ):
        instance = made("mig", share).parts[0].instance
        assert instance is not None and instance.profile == profile


@pytest.mark.parametrize(
    ("mode", "share", "code"),
    [
        ("mig", Share(profile="1g.5gb"), "mig_no_profile"),
        ("mig", Share(memory_bytes=90 * GIB), "larger_than_gpu"),
        ("mps", Share(profile="1g.10gb"), "profile_without_mig"),
        ("time", Share(memory_bytes=90 * GIB), "larger_than_gpu"),
    ],
)
def test_what_a_gpu_does_not_have_is_refused(mode: Mode, share: Share, code: str) -> None:
    assert refusal(mode, share) == code


def test_a_whole_gpu_is_for_one_and_mps_for_so_many() -> None:
    assert refusal("whole", HALF, HALF) == "whole_is_for_one"
    assert refusal("mps", *[Share(compute_ppm=1)] * (MPS_CLIENTS + 1)) == "mps_clients"
    assert made("whole", HALF).slices_ppm == (WHOLE_PPM,)


def test_memory_of_an_unknown_gpu_cannot_be_promised() -> None:
    blind = Device("n/1", "n", 1, "gpu")
    assert refusal("mps", Share(memory_bytes=GIB), gpu=blind) == "memory_unknown"
    found = cut(blind, "mig", [HALF])
    assert isinstance(found, PartRefused) and found.because.code == "mig_unknown"


shares = st.builds(
    Share,
    compute_ppm=st.integers(0, WHOLE_PPM),
    memory_bytes=st.integers(0, 80 * GIB),
    profile=st.sampled_from(["", "", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]),
)


@given(
    st.sampled_from(["whole", "mig", "mps", "time"]),
    st.lists(shares, min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_the_parts_of_a_gpu_always_sum_to_the_whole(mode: Mode, wishes: list[Share], times: int) -> None:
    over = Oversubscription(times * WHOLE_PPM, times * WHOLE_PPM)
    found = cut(GPU, mode, wishes, over, H100)
    if isinstance(found, PartRefused):
        return
    assert sum(p.share_ppm for p in found.parts) == WHOLE_PPM
    assert sum(p.memory_ppm for p in found.parts) == WHOLE_PPM
    assert all(p.share_ppm > 0 for p in found.parts)
    assert sum(p.rest for p in found.parts) <= 1
    if mode in ("mps", "time"):
        assert found.compute_promised_ppm == sum(p.compute_ppm for p in found.parts) <= over.compute_ppm


@given(st.lists(st.integers(1, WHOLE_PPM), min_size=1, max_size=100))
def test_scaled_shares_keep_their_order_and_lose_nothing(asked: list[int]) -> None:
    found = shares_of(asked)
    assert sum(found) == WHOLE_PPM and min(found) >= 1
    if sum(asked) >= WHOLE_PPM:
        ranked = sorted(range(len(asked)), key=lambda k: asked[k])
        assert all(found[a] <= found[b] + 1 for a, b in pairwise(ranked))


def test_an_mps_client_is_bounded_by_its_environment() -> None:
    env = mps_environment(GpuPart(250_000, 250_000, 255_000, 20 * GIB), "/p", "/l")
    assert env == {
        "CUDA_MPS_PIPE_DIRECTORY": "/p",
        "CUDA_MPS_LOG_DIRECTORY": "/l",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
    }
    tiny = mps_environment(GpuPart(1, 0, 1, 0), "/p", "/l")
    assert tiny["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1" and "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in tiny


def test_slices_of_cpu_devices_stand_for_their_part_of_the_nodes_cores() -> None:
    whole = Device("n/0", "n", 0, "cpu")
    halves = Device("n/1", "n", 1, "cpu", slices_ppm=(250_000, 750_000))
    node = Node("n", "site", (whole, halves), cpus=8.0)
    assert cpu_quota(node, ("n/0",), 2.0) is None
    assert cpu_quota(node, ("n/1#0",), 2.0) == 1.0
    assert cpu_quota(node, ("n/1#0", "n/1#1"), 2.0) == 4.0
    assert cpu_quota(node, ("n/0", "n/1#1"), 2.0) == 7.0
    assert cpu_quota(Node("n", "site", (whole, halves)), ("n/1#0",), 2.0) == 0.25


# -- which GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "uuids", "code"),
    [
        ({}, {}, None),
        ({"include": ("H100",)}, {}, None),
        ({"include": ("A100", "h100 80gb")}, {}, None),
        ({"include": ("A100",)}, {}, "model_not_included"),
        ({"exclude": ("H100",)}, {}, "model_excluded"),
        ({"exclude": ("H10",)}, {}, None),
        ({"include": ("H100",), "exclude": ("HBM3",)}, {}, "model_excluded"),
        ({}, {"include": ("GPU-6b1e",)}, None),
        ({}, {"include": ("GPU-6b1f",)}, "uuid_not_included"),
        ({}, {"exclude": ("GPU-6b1e0001",)}, "uuid_excluded"),
        ({}, {"exclude": ("GPU-",)}, None),
    ],
)
def test_models_and_single_gpus_are_included_and_excluded(
    models: dict[str, tuple[str, ...]], uuids: dict[str, tuple[str, ...]], code: str | None
) -> None:
    found = may_use(GPU, Where(models=Select(**models), uuids=Select(**uuids)))
    assert (found and found.because.code) == code


def test_the_tables_of_modes_agree() -> None:
    assert set(GUARANTEES) == set(get_args(CutMode))
    assert {mode for modes in PART_MODES.values() for mode in modes} == set(get_args(PartMode))
    assert {"any", *GPU_MODES} == set(get_args(ShareMode))

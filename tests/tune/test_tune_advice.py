"""Advice without edits: its figures follow from what was given, and agree with other ways to compute them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.commands import ask, unidle
from unidle.checkpoint.interval import Costs, best_interval, ettr
from unidle.tune.advice.budget import SpotMarket, TrainingBudget, fixed_budget, spot_or_not
from unidle.tune.advice.network import NetworkShape, network_settings
from unidle.tune.advice.training import (
    GradientLoad,
    LoaderLoad,
    accumulation,
    gradient_buckets,
    loader_workers,
)
from unidle.tune.fit.memory import largest_batch
from unidle.tune.fit.model import DecoderModel, ShardedOver, Use

SMALL = DecoderModel(12, 768, 12, 12, 64, 3072, 50257, 1024, gated=False, bias=True, tied=True)


def number(values: Any, name: str) -> float:
    assert isinstance(values[name], int | float)
    return float(values[name])


@given(st.floats(0.01, 100), st.floats(1, 1000), st.integers(1, 512), st.integers(1, 128), st.integers(1, 8))
def test_workers_keep_up_with_steps_unless_cores_are_too_few(sample: float, step: float, batch: int, cores: int, ranks: int) -> None:  # fmt: skip
    found = loader_workers(LoaderLoad(sample, step, batch, cores, ranks)).values
    workers = number(found, "workers")
    assert 0 <= workers <= max(0, cores // ranks - 1)
    if workers == number(found, "wanted") > 0:
        assert number(found, "wait_ms") == pytest.approx(0, abs=1e-6) or sample * batch / workers <= step * (1 + 1e-9)  # fmt: skip
    assert number(found, "wait_ms") == pytest.approx(max(0.0, sample * batch / max(workers, 1) - step if workers else sample * batch))  # fmt: skip


def test_accumulated_batches_make_up_the_update_and_fit() -> None:
    device = ("T4 16 GB", 15 * 2**30)
    use, cut = Use(sequence=1024), ShardedOver(data=4)
    found = accumulation(SMALL, use, cut, device, 480).values
    batch, passes = number(found, "batch"), number(found, "passes")
    assert batch * passes * 4 == 480
    assert batch <= largest_batch(SMALL, use, cut, device[1]) < 120
    assert number(found, "tokens") == 480 * 1024


@given(
    st.integers(10**5, 10**10), st.floats(1, 1000), st.integers(2, 512), st.floats(1, 800), st.floats(0, 200)
)
def test_no_size_of_a_bucket_hides_more_than_the_wire_allows(size: int, backward: float, ranks: int, gbps: float, hop: float) -> None:  # fmt: skip
    advice = gradient_buckets(GradientLoad(size, backward, ranks, gbps, hop))
    exposed = number(advice.values, "exposed_ms")
    assert exposed >= number(advice.values, "wire_ms") - backward - 1e-6
    assert exposed <= number(advice.values, "exposed_of_25_mb_ms") + 1e-3
    assert f"bucket_cap_mb={advice.values['bucket_mb']}" in advice.settings[0]


def test_one_rank_sends_nothing() -> None:
    assert gradient_buckets(GradientLoad(10**9, 10.0, 1, 100.0, 5.0)).values["exposed_ms"] == 0


@given(st.floats(1, 500), st.floats(1, 120), st.floats(0, 900))
def test_spot_is_as_useful_as_the_best_checkpoint_interval_allows(hours: float, save: float, restart: float) -> None:  # fmt: skip
    found = spot_or_not(SpotMarket(2.0, 1.0, hours, save, restart)).values
    costs = Costs(save, hours * 3600, restart, 0.0)
    assert number(found, "spot_useful") <= ettr(best_interval(costs), costs) + 1e-9
    assert number(found, "spot_useful") >= ettr(best_interval(costs), costs) - 0.02


def test_at_the_even_price_both_cost_the_same() -> None:
    even = number(spot_or_not(SpotMarket(2.5, 1.0, 6.0, 20.0, 300.0)).values, "even_price")
    again = spot_or_not(SpotMarket(2.5, even, 6.0, 20.0, 300.0)).values
    assert number(again, "spot_cost") == pytest.approx(number(again, "on_demand_cost"))
    assert spot_or_not(SpotMarket(2.5, even * 0.99, 6.0, 20.0, 300.0)).values["choice"] == "spot"
    assert spot_or_not(SpotMarket(2.5, even * 1.01, 6.0, 20.0, 300.0)).values["choice"] == "on demand"


def test_spot_that_is_interrupted_before_it_restarts_has_no_price() -> None:
    found = spot_or_not(SpotMarket(2.5, 0.1, 0.05, 20.0, 300.0)).values
    assert found["choice"] == "on demand"
    assert found["spot_cost"] is None


@given(st.floats(1, 1e7), st.floats(0.05, 0.7), st.floats(1, 2000))
def test_a_budget_is_spent_by_parameters_and_tokens(hours: float, mfu: float, ratio: float) -> None:
    found = fixed_budget(TrainingBudget(hours, "H100 80 GB", 989, mfu, ratio)).values
    spent = 6 * number(found, "parameters") * number(found, "tokens")
    assert spent == pytest.approx(hours * 3600 * 989e12 * mfu, rel=1e-3)
    assert number(found, "tokens") / number(found, "parameters") == pytest.approx(ratio, rel=1e-3)
    assert number(found, "hidden") % 64 == 0
    assert number(found, "steps") * 524_288 >= number(found, "tokens")


def test_published_budget() -> None:
    """Chinchilla: 70 billion parameters and 1.4 trillion tokens for 5.76e23 FLOP (arXiv 2203.15556, table 3)."""
    found = fixed_budget(TrainingBudget(5.76e23 / 3600 / 1e12, "made up", 1.0, 1.0)).values
    assert number(found, "parameters") == pytest.approx(70e9, rel=0.02)
    assert number(found, "tokens") == pytest.approx(1.4e12, rel=0.02)
    assert number(found, "hidden") == pytest.approx(8192, rel=0.15)
    assert number(found, "layers") == pytest.approx(80, rel=0.15)


@pytest.mark.parametrize("gbps", [1, 10, 25, 100, 400, 800, 3200])
def test_sockets_stay_within_what_nccl_allows(gbps: float) -> None:
    settings = dict(line.split("=", 1) for line in network_settings(NetworkShape("ethernet", 4, 8, 1, gbps, 50), 0).settings if line.startswith("NCCL"))  # fmt: skip
    threads, each = int(settings["NCCL_SOCKET_NTHREADS"]), int(settings["NCCL_NSOCKS_PERTHREAD"])
    assert threads * each <= 64
    assert threads <= 16
    assert settings["NCCL_IB_DISABLE"] == "1"


def test_settings_follow_the_fabric_and_rails() -> None:
    def settings(*given: Any) -> tuple[str, ...]:
        return network_settings(NetworkShape(*given), 0).settings

    assert settings("ethernet", 1, 8, 1, 100, 20) == ()
    rails = settings("infiniband", 4, 8, 8, 400, 5, "", "mlx5_0")
    assert {"NCCL_CROSS_NIC=0", "NCCL_IB_HCA=mlx5_0", "NCCL_IB_QPS_PER_CONNECTION=4"} == set(rails)
    assert {"NCCL_CROSS_NIC=1", "NCCL_IB_GID_INDEX=3"} == set(settings("roce", 4, 8, 2, 100, 5))


def test_many_nodes_and_small_messages_are_faster_on_a_tree() -> None:
    def faster(nodes: int, size: int) -> object:
        return network_settings(NetworkShape("infiniband", nodes, 8, 8, 400, 10), size).values["faster"]

    assert faster(512, 10**5) == "tree"
    assert faster(4, 10**10) == "ring"


def test_commands_print_arithmetic_and_settings_or_json() -> None:
    words = (
        "tune",
        "advise",
        "workers",
        "--sample-ms",
        "4",
        "--step-ms",
        "30",
        "--batch",
        "32",
        "--cores",
        "32",
    )
    found = ask(*words)
    assert found["workers"] == 6
    assert found["settings"] == ["DataLoader(..., num_workers=6, prefetch_factor=2)"]
    done = unidle(*words)
    assert all(line in done.stdout for line in found["arithmetic"])
    assert "not verified on a device here" in done.stderr
    assert ask("tune", "advise", "spot", "--price", "2.5", "--spot-price", "1", "--interrupted-h", "6", "--save-s", "20")["choice"] == "spot"  # fmt: skip
    assert ask("tune", "advise", "budget", "--gpu-hours", "1000")["layers"] == 25
    assert ask("tune", "advise", "network", "--fabric", "roce", "--hosts", "4", "--link-gbps", "100")[
        "settings"
    ]
    buckets = (
        "--gradient-bytes",
        "2800000000",
        "--backward-ms",
        "150",
        "--world",
        "16",
        "--link-gbps",
        "400",
    )
    assert ask("tune", "advise", "buckets", *buckets)["bucket_mb"] == 50


def test_bad_input_is_one_error(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    for words, text in (
        (
            ("accumulate", tmp_path / "config.json", "--sequences", "10", "--replicas", "4"),
            "cannot be divided by the replicas",
        ),
        (("accumulate", tmp_path / "config.json", "--sequences", "8", "--on", "TPU"), "is no known device"),
        (("budget", "--gpu-hours", "1", "--batch-tokens", "5"), "is less than one sequence"),
        (("workers", "--sample-ms", "0", "--step-ms", "1", "--batch", "1", "--cores", "1"), "--sample-ms"),
    ):
        done = unidle("tune", "advise", *words)
        assert done.returncode == 2
        assert text in " ".join(done.stderr.split())

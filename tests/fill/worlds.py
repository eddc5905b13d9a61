"""Small trainings, models and prompts for tests of fill."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from unidle.files.document import Document
from unidle.fill.model.prefill import InferenceModel
from unidle.fill.policy.requests import PrefillRequest
from unidle.fill.simulate.run import FillSetting
from unidle.span.files.setting import setting_of
from unidle.span.simulate.iteration import Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES

MS = 1_000_000
MODEL = {"layers": 8, "hidden": 1024, "kv_share": 0.25}


def span_file(**more: Any) -> dict[str, Any]:
    """Three sites with two stages each, two pipelines that share their links: an iteration of about a quarter of a second."""
    return {
        "model": {"layers": 6, "hidden": 1024, "sequence": 4096}, "device_tflops": 10, "pipelines": 2, "cell": 2, "stages": 6,
        "microbatches": 3, "memory_cap_bytes": "8GB", "local_gbps": 400,
        "sites": [{"name": name, "stages": 2} for name in "abc"],
        "links": [{"from": a, "to": b, "latency_ms": 20, "capacity_gbps": 5} for a, b in ("ab", "bc")], **more,
    }  # fmt: skip


def fill_file(**more: Any) -> dict[str, Any]:
    """The same with prompts."""
    return span_file() | {
        "prompts": {"process": "poisson", "rate_per_s": 60, "tokens": {"min": 16, "max": 2048}, "slo_ttft_ms": 1500},
        "inference": {"model": MODEL, "pp": 2}, "seconds": 2, **more,
    }  # fmt: skip


@cache
def training(schedule: str = "atlas-keep", **more: Any) -> Simulation:
    """A simulated schedule of :func:`span_file`."""
    return simulate(setting_of(Document(span_file(**more), "span")), SCHEDULES[schedule])


def model(pp: int = 2, **more: Any) -> InferenceModel:
    return InferenceModel(8, 1024, pp, 10, kv_share=0.25, local_gbps=400, **more)


def requests(
    gaps_ms: Sequence[int], tokens: Sequence[int], slo_ms: int | None = 1500
) -> tuple[PrefillRequest, ...]:
    now, found = 0, []
    for number, (gap, count) in enumerate(zip(gaps_ms, tokens, strict=True)):
        now += gap * MS
        found.append(PrefillRequest(number, now, count, None if slo_ms is None else now + slo_ms * MS))
    return tuple(found)


def filling(seconds: float = 2.0, pp: int = 2, **more: Any) -> FillSetting:
    given = {"simulation": training(), "model": model(pp), "requests": (), "seconds": seconds} | more
    return FillSetting(**given)


prompts = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 3000)), min_size=1, max_size=40)

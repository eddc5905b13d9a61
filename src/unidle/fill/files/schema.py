"""The JSON Schema (2020-12) of the fill file, made from the types that check it."""

from __future__ import annotations

from typing import Any, Final

from unidle.files.schema import schema_of
from unidle.fill.files.file import FillFile

_EXAMPLE: Final[dict[str, Any]] = {
    "model": {"layers": 9, "hidden": 4096, "sequence": 4096},
    "device_tflops": 156,
    "pipelines": 4,
    "cell": 4,
    "stages": 3,
    "microbatches": 4,
    "memory_cap_bytes": "80GB",
    "local_gbps": 2400,
    "sites": [{"name": name, "stages": 1} for name in ("oregon", "ohio", "virginia")],
    "links": [
        {"from": "oregon", "to": "ohio", "latency_ms": 40, "capacity_gbps": 5},
        {"from": "ohio", "to": "virginia", "latency_ms": 40, "capacity_gbps": 5},
    ],
    "prompts": {
        "process": "poisson",
        "rate_per_s": 20,
        "tokens": {"min": 64, "max": 4096},
        "slo_ttft_ms": 3000,
    },
    "inference": {"model": {"layers": 32, "hidden": 4096, "kv_share": 0.25}, "pp": 1},
    "jitter_pct": 10,
    "seconds": 20,
    "seed": 0,
}


def fill_schema() -> dict[str, Any]:
    """The JSON Schema of the fill file."""
    return schema_of(FillFile, "unidle fill file", _EXAMPLE)

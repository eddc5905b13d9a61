"""The JSON Schema (2020-12) of the span file, made from the types that check it."""

from __future__ import annotations

from typing import Any, Final

from unidle.files.schema import schema_of
from unidle.span.files.file import SpanFile

_EXAMPLE: Final[dict[str, Any]] = {
    "model": {"layers": 12, "hidden": 4096, "sequence": 4096},
    "device_tflops": 156,
    "pipelines": 4,
    "cell": 4,
    "stages": 3,
    "microbatches": 16,
    "memory_cap_bytes": "80GB",
    "local_gbps": 100,
    "sites": [
        {"name": "oregon", "stages": 1, "price_per_gpu_hour": 2.5},
        {"name": "ohio", "stages": 1},
        {"name": "virginia", "stages": 1},
    ],
    "links": [
        {"from": "oregon", "to": "ohio", "latency_ms": 40, "capacity_gbps": 5},
        {"from": "ohio", "to": "virginia", "latency_ms": 11, "capacity_gbps": 5},
    ],
}


def span_schema() -> dict[str, Any]:
    """The JSON Schema of the span file."""
    return schema_of(SpanFile, "unidle span file", _EXAMPLE)

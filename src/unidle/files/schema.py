"""JSON Schemas (2020-12) of the files, made from the types that check them."""

from __future__ import annotations

from typing import Any

import msgspec

from unidle.files.clusters import ClustersFile
from unidle.files.decoder_file import DecoderFile
from unidle.files.drill import DrillFile
from unidle.files.fleet_file import FleetFile
from unidle.files.job_file import JobFile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_JOB_EXAMPLE = {
    "name": "gpt-small",
    "command": ["python", "train.py", "--lr", "3e-4"],
    "ranks": 4,
    "layout": {"dp": 4},
    "env": {"OMP_NUM_THREADS": "1"},
    "checkpoint": {"path": "checkpoints"},
    "restart": {"max": 3, "backoff_s": 1, "on": ["signal", 75]},
    "timeout_s": 86400,
}
_FLEET_EXAMPLE = {
    "currency": "USD",
    "prices": {"H100": 2.5},
    "tiers": [{"id": "site-a", "kind": "site"}, {"id": "leaf-[1-2]", "kind": "leaf", "parent": "site-a"}],
    "nodes": [
        {"id": "n[1-4]", "parent": "leaf-1", "devices": {"count": 8, "kind": "gpu", "model": "H100"}},
        {"id": "n[5-8]", "parent": "leaf-2", "devices": {"count": 8, "kind": "gpu", "model": "H100"}},
    ],
    "links": [{"a": "leaf-1", "b": "leaf-2", "gbps": 400, "latency_us": 5}],
}

_CLUSTERS_EXAMPLE = {
    "prefer": "start",
    "clusters": [
        {"name": "east", "store": "postgresql://db.east/unidle"},
        {"name": "west", "summary": "west.json"},
    ],
}

_DRILL_EXAMPLE = {
    "job": "job.yaml",
    "nodes": 2,
    "result": "result.pt",
    "faults": [
        {"at_step": 40, "kind": "kill", "target": "rank:2"},
        {"at_step": 80, "kind": "cut", "target": "link:n1-n2", "for_s": 10},
    ],
}


_MODEL_EXAMPLE = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "intermediate": 14336, "vocabulary": 128256,
}  # fmt: skip


def job_schema() -> dict[str, Any]:
    """The JSON Schema of the job file."""
    return schema_of(JobFile, "unidle job file", _JOB_EXAMPLE)


def fleet_schema() -> dict[str, Any]:
    """The JSON Schema of the fleet file."""
    return schema_of(FleetFile, "unidle fleet file", _FLEET_EXAMPLE)


def clusters_schema() -> dict[str, Any]:
    """The JSON Schema of the clusters file."""
    return schema_of(ClustersFile, "unidle clusters file", _CLUSTERS_EXAMPLE)


def drill_schema() -> dict[str, Any]:
    """The JSON Schema of the drill file."""
    return schema_of(DrillFile, "unidle drill file", _DRILL_EXAMPLE)


def model_schema() -> dict[str, Any]:
    """The JSON Schema of the model file."""
    return schema_of(DecoderFile, "unidle model file", _MODEL_EXAMPLE)


def schema_of(kind: type, title: str, example: dict[str, Any]) -> dict[str, Any]:
    """The schema of a file: the root type's own fields at the top, the nested ones under ``$defs``."""
    whole = msgspec.json.schema(kind)
    parts: dict[str, Any] = whole["$defs"]
    root = parts.pop(kind.__name__)
    root["title"] = title
    schema: dict[str, Any] = {"$schema": _DIALECT, **root, "examples": [example], "$defs": parts}
    # As JSON carries it: the defaults of nested parts come as tuples.
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return copy

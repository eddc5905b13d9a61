"""JSON Schemas (2020-12) of the files, made from the types that check them."""

from __future__ import annotations

from typing import Any

import msgspec

from unidle.files.fleet_file import FleetFile
from unidle.files.job_file import JobFile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """The JSON Schema of the job file."""
    return _schema(JobFile, "unidle job file")


def fleet_schema() -> dict[str, Any]:
    """The JSON Schema of the fleet file."""
    return _schema(FleetFile, "unidle fleet file")


def _schema(kind: type, title: str) -> dict[str, Any]:
    """The root type's own fields at the top, the nested ones under ``$defs``."""
    whole = msgspec.json.schema(kind)
    parts: dict[str, Any] = whole["$defs"]
    root = parts.pop(kind.__name__)
    root["title"] = title
    schema: dict[str, Any] = {"$schema": _DIALECT, **root, "$defs": parts}
    # As JSON carries it: the defaults of nested parts come as tuples.
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return copy

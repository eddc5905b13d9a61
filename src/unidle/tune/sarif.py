"""Findings as SARIF 2.1.0, for code scanning.

Source: OASIS, Static Analysis Results Interchange Format Version 2.1.0, Errata 01.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from unidle.tune.files import SkippedFile
from unidle.tune.registry import CodeFinding, TuneRule

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(
    found: Sequence[CodeFinding], skipped: Sequence[SkippedFile], rules: Sequence[TuneRule], version: str
) -> dict[str, Any]:
    """One run with its rules and results. Paths are relative to the directory of the check, in forward slashes."""
    places = {one.code: place for place, one in enumerate(rules)}
    driver = {
        "name": "unidle tune",
        "version": version,
        "semanticVersion": version,
        "rules": [_rule(one) for one in rules],
    }
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if skipped:
        invocation["toolExecutionNotifications"] = [_notification(one) for one in skipped]
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, places[one.code]) for one in found],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(one: TuneRule) -> dict[str, Any]:
    return {
        "id": one.code,
        "name": "".join(word.capitalize() for word in one.name.split("-")),
        "shortDescription": {"text": one.message},
        "helpUri": one.url,
        "defaultConfiguration": {"level": one.severity},
        "properties": {"tags": ["performance"], "fixable": one.fixable},
    }


def _result(one: CodeFinding, place: int) -> dict[str, Any]:
    file = one.file.rpartition(":cell ")[0] if one.cell else one.file
    region = {"startLine": one.line, "startColumn": one.column, "endLine": one.end_line}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": quote(file)}, "region": region}
    }
    if one.cell:
        location["logicalLocations"] = [{"name": f"cell {one.cell}"}]
    digest = hashlib.sha256(
        "\0".join((one.file, one.code, one.text)).encode("utf-8", "surrogatepass")
    ).hexdigest()
    return {
        "ruleId": one.code,
        "ruleIndex": place,
        "level": one.severity,
        "message": {"text": one.message},
        "locations": [location],
        "partialFingerprints": {"unidleCodeLine/v1": digest[:32]},
    }


def _notification(one: SkippedFile) -> dict[str, Any]:
    return {"level": "warning", "message": {"text": f"{one.file}: {one.why}"}}

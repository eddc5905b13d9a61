"""Span files, and the same as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unidle.files.document import Document
from unidle.span.files.plan import load_plan, wanted_of
from unidle.span.files.setting import load_pipelines, pipelines_of, setting_of
from unidle.span.files.train import RunRequest, run_of
from unidle.span.model.setting import Setting
from unidle.span.plan.offer import PlanRequest
from unidle.span.simulate.uneven import PipelineGroup


def load_span(path: Path | str) -> Setting:
    """The setting of a file whose pipelines are equal."""
    setting, groups = load_pipelines(path)
    assert not groups
    return setting


def load_wanted(path: Path | str) -> PlanRequest:
    return load_plan(path)[0]


def span_from_mapping(data: Mapping[str, Any]) -> Setting:
    return setting_of(Document(data, "span"))


def pipelines_from_mapping(data: Mapping[str, Any]) -> tuple[Setting, tuple[PipelineGroup, ...]]:
    return pipelines_of(Document(data, "span"))


def wanted_from_mapping(data: Mapping[str, Any]) -> PlanRequest:
    return wanted_of(Document(data, "span"))


def run_from_mapping(data: Mapping[str, Any], base: str) -> RunRequest:
    return run_of(Document(data, "span"), base)

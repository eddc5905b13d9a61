"""``unidle check``: a node proves itself before a gang starts on it."""

from __future__ import annotations

from unidle.probe.check.model import (
    Absent,
    Check,
    Context,
    NodeReport,
    Outcome,
    Probe,
    ProbeResult,
    Tier,
    unknown,
)
from unidle.probe.check.registry import PROBES, chosen
from unidle.probe.check.runner import check_node
from unidle.probe.check.thresholds import ModelThresholds, Thresholds, load_thresholds, shipped

__all__ = [
    "PROBES",
    "Absent",
    "Check",
    "Context",
    "ModelThresholds",
    "NodeReport",
    "Outcome",
    "Probe",
    "ProbeResult",
    "Thresholds",
    "Tier",
    "check_node",
    "chosen",
    "load_thresholds",
    "shipped",
    "unknown",
]

"""``unidle check``: a node proves itself before a gang starts on it."""

from __future__ import annotations

from unidle.probe.check.model import Absent, Check, Context, Found, Outcome, Probe, Report, Tier, unknown
from unidle.probe.check.registry import PROBES, chosen
from unidle.probe.check.runner import check_node
from unidle.probe.check.thresholds import Book, Thresholds, load_thresholds, shipped

__all__ = [
    "PROBES",
    "Absent",
    "Book",
    "Check",
    "Context",
    "Found",
    "Outcome",
    "Probe",
    "Report",
    "Thresholds",
    "Tier",
    "check_node",
    "chosen",
    "load_thresholds",
    "shipped",
    "unknown",
]

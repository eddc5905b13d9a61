"""ATLAS (arXiv 2411.14458), reconstructed from its abstract: the pipelines of a cell share their links in time.

A transfer is scattered over the cell's nodes, all send at once with many flows, the far side gathers, and pipelines
take turns. The order within a pipeline is that of Varuna, with recompute always.
"""

from __future__ import annotations

from unidle.span.program import Program, Share
from unidle.span.schedules.base import Try, fastest, is_large, pulled_ahead
from unidle.span.schedules.varuna import SCALES
from unidle.span.setting import Setting


def atlas(setting: Setting, attempt: Try) -> Program:
    """The best of a few depths."""
    scales = SCALES[:1] if is_large(setting) else SCALES
    label = f"turns in cells of {setting.cell}" if setting.cell > 1 else "backward first, many flows"
    return fastest(pulled_ahead(setting, label, Share("turns"), scales, max_flows=True), attempt)

"""ATLAS (arXiv 2411.14458), reconstructed from its abstract: the pipelines of a cell share their links in time.

A transfer is scattered over the cell's nodes, all send at once with many flows, the far side gathers, and pipelines
take turns. The order within a pipeline is that of Varuna. The paper's schedule always recomputes; ``atlas_keep`` is the
stronger one, which keeps the activations that the memory allows.
"""

from __future__ import annotations

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program, Share
from unidle.span.simulate.schedules.base import Try, fastest, is_large, pulled_ahead
from unidle.span.simulate.schedules.varuna import SCALES


def atlas(setting: Setting, attempt: Try) -> Program:
    """The best of a few depths, with recompute always."""
    return _atlas(setting, attempt, keep=False)


def atlas_keep(setting: Setting, attempt: Try) -> Program:
    """The best of a few depths, each with and without the activations that fit into the memory cap."""
    return _atlas(setting, attempt, keep=True)


def _atlas(setting: Setting, attempt: Try, *, keep: bool) -> Program:
    scales = SCALES[:1] if is_large(setting) else SCALES
    label = f"turns in cells of {setting.cell}" if setting.cell > 1 else "backward first, many flows"
    return fastest(pulled_ahead(setting, label, Share("turns"), scales, max_flows=True, keep=keep), attempt)

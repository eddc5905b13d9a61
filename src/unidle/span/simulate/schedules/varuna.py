"""Varuna-like (arXiv 2111.04007), reconstructed: backward before forward, recompute done while the gradient is on its
way, next forwards pulled ahead while it waits.

Varuna decides while it runs; here the depth to which forwards are pulled ahead is searched, and the order is fixed.
"""

from __future__ import annotations

from typing import Final

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program, Share
from unidle.span.simulate.schedules.base import Try, fastest, is_large, pulled_ahead

SCALES: Final = (1.0, 0.5, 1.5, 2.0, float("inf"), 0.0)


def varuna(setting: Setting, attempt: Try) -> Program:
    """The best of a few depths."""
    scales = SCALES[:1] if is_large(setting) else SCALES
    programs = pulled_ahead(setting, "backward first", Share(), scales, max_flows=not setting.one_flow)
    return fastest(programs, attempt)

"""The schedules by name. Each is a pure function of a setting, and of what it may try.

One of a user's own is a function of a :class:`~unidle.span.model.setting.Setting` in any Python file that returns, for each
stage, what it does in order: ``("F", 0)``, ``("B", 0)``, ``("W", 0)``, and ``("R", 0)`` right before a ``B`` whose
activations are made again. See :mod:`unidle.span.simulate.schedules.custom`.
"""

from __future__ import annotations

from typing import Final

from unidle.span.simulate.schedules.base import Choose, Schedule, Try
from unidle.span.simulate.schedules.custom import own
from unidle.span.simulate.schedules.published import (
    atlas,
    atlas_keep,
    gpipe,
    interleaved,
    one_f_one_b,
    varuna,
    zb_h1,
)
from unidle.span.simulate.schedules.unidle import unidle

SCHEDULES: Final[dict[str, Schedule]] = {
    schedule.name: schedule
    for schedule in (
        Schedule("gpipe", gpipe),
        Schedule("1f1b", one_f_one_b),
        Schedule("interleaved", interleaved),
        Schedule("zb-h1", zb_h1),
        Schedule("varuna", varuna, reconstructed=True),
        Schedule("atlas", atlas, reconstructed=True),
        Schedule("atlas-keep", atlas_keep, reconstructed=True),
        Schedule("unidle", unidle),
    )
}

__all__ = ["SCHEDULES", "Choose", "Schedule", "Try", "own"]

"""Which nodes are out of use by the log, for an engine whose nodes others use, too. Pure."""

from __future__ import annotations

from typing import Final

from unidle.engine.node_marks import NodeMark
from unidle.guard.remedy_model import DRAINED
from unidle.view.node_health import CareView
from unidle.view.state import View

OUT_OF_USE: Final = frozenset({"draining", "quarantine", "remedy", "proving", "out", "maintenance"})
_TEXT_CHARS: Final = 300


def marks_of(view: View) -> dict[str, NodeMark]:
    """By node. A device that is out takes its node out of use for no one else."""
    care = view.care
    found = {
        node: NodeMark("cordoned", cordon.because.text[:_TEXT_CHARS], by_hand=True)
        for node, cordon in care.cordons.items()
    }
    for target, here in care.targets.items():
        if target == here.node and here.state in OUT_OF_USE:
            by_hand = _is_by_hand(here)
            found[target] = NodeMark(here.state, _text(here), by_hand=by_hand, leave=by_hand)
    return found


def _text(here: CareView) -> str:
    """Why it is out of use, and what is done about it now."""
    texts = dict.fromkeys((here.cause.text, here.because.text))
    return "; ".join(texts)[:_TEXT_CHARS]


def _is_by_hand(here: CareView) -> bool:
    return here.state == "maintenance" or here.cause.code == DRAINED

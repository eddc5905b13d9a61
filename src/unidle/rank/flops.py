"""Count the floating-point operations of one step, by the operators of PyTorch that run in it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FROM = 1  # the first step sets up what others do not
_MOST = 2**63 - 1


class FlopCount:
    """Of the second step that this process completes.

    What PyTorch counts are the products of matrices, convolutions and attention of forward and backward pass, with what is
    recomputed. A program that is compiled runs other operators, and a step of it is not counted.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._mode: Any = None

    def after_step(self) -> tuple[bool, int | None]:
        """Call it at the end of each step: whether to call it again, and the operations where they were counted."""
        self._steps += 1
        if self._mode is None:
            return (self._begin() if self._steps == _FROM else False), None
        mode, self._mode = self._mode, None
        mode.__exit__(None, None, None)
        if _is_compiled():
            return False, None
        count = int(mode.get_total_flops())
        return False, count if 0 < count <= _MOST else None

    def _begin(self) -> bool:
        if "torch" not in sys.modules or _is_compiled():
            return False
        from importlib import import_module

        self._mode = import_module("torch.utils.flop_counter").FlopCounterMode(display=False)
        self._mode.__enter__()
        return True


def _is_compiled() -> bool:
    """Whether code of this process was compiled by ``torch.compile``: of that, a mode of dispatch sees nothing, or stops it."""
    found = sys.modules.get("torch._dynamo.utils")
    return bool(found is not None and found.counters["frames"])

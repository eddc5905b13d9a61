"""From lines of a kernel log to findings: pure, line by line, with what later lines need of earlier ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from unidle.guard.log.model import TAKES_OUT, Action, Finding, LogLine, Role

if TYPE_CHECKING:
    from unidle.guard.log.reader import NEEDLES, Reader, findings
    from unidle.guard.log.split import Splitter

__all__ = ["NEEDLES", "TAKES_OUT", "Action", "Finding", "LogLine", "Reader", "Role", "Splitter", "findings"]

# who only follows a log needs no rules before the first line comes: they are a tenth of a second of start-up
_LATER: Final = {"NEEDLES": "reader", "Reader": "reader", "findings": "reader", "Splitter": "split"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

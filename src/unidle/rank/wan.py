"""The former name of :mod:`unidle.span.wan`, which re-exports it for programs that import it. New ones use the new name."""

from __future__ import annotations

try:
    from unidle.span.wan import (
        CellChannel,
        Channel,
        ChannelClosed,
        ChannelLost,
        Endpoint,
        PortTaken,
        Refused,
        Settings,
        Stats,
        WanError,
        WrongSize,
    )
except ModuleNotFoundError as missing:
    raise ImportError("unidle.rank.wan is in an extra: pip install 'unidle[span]'") from missing

__all__ = [
    "CellChannel",
    "Channel",
    "ChannelClosed",
    "ChannelLost",
    "Endpoint",
    "PortTaken",
    "Refused",
    "Settings",
    "Stats",
    "WanError",
    "WrongSize",
]

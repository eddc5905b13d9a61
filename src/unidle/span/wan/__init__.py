"""Byte buffers between the peers of one run over long, slow links: many TCP flows that act as one.

    endpoint = Endpoint("a", run="run-7", secret=secret, listen=("10.0.0.1", 29400))
    channel = endpoint.connect("b", ("10.0.1.1", 29400))     # or endpoint.accept("b") at the other side
    sent = channel.send(1, buffer)                           # futures: nothing here blocks
    got = channel.recv(2, other)
    got.result()

A message is cut into chunks that any flow may carry; the receiver puts them in place by their offset, has damaged ones
sent again and grants credit by the buffers that were posted. See :class:`Settings` for what can be set, and
:mod:`unidle.span.wan.cell` for a message that uses the links of several nodes at once. Standard library only.
"""

from __future__ import annotations

from unidle.span.wan.api import (
    ChannelClosed,
    ChannelLost,
    PortTaken,
    Refused,
    Settings,
    Stats,
    WanError,
    WrongSize,
)
from unidle.span.wan.cell import CellChannel
from unidle.span.wan.channel import Channel
from unidle.span.wan.endpoint import Endpoint

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

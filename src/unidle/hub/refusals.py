"""What the hub refused: how often, and the last ones. Without secrets, and safe to print on a terminal."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Literal

import msgspec

Because = Literal[
    "address", "slots", "late", "tls", "malformed", "version", "token", "unread", "silent", "replaced", "descriptors",
    "stale", "error",
]  # fmt: skip
"""Why a connection was refused or closed by the hub.

``address``: too many of one address without a hello; ``slots``: too many without a hello at all; ``late``: no TLS and hello
within the deadline; ``unread``: it does not read; ``silent``: no pong; ``replaced``: a newer connection of the same client;
``stale``: the controller could not renew its lease; ``descriptors``: this process may not open more; ``error``: a fault of the hub itself.
"""
KEPT: Final = 200
_LONGEST: Final = 200


class HubRefusal(msgspec.Struct, frozen=True):
    """One refusal. ``t_ns``: on the controller's clock; ``node`` is what the client claims to be, if it got that far."""

    t_ns: int
    because: Because
    address: str
    why: str
    node: str = ""


class Refusals:
    """Counts since the start, and the last :data:`KEPT` refusals. One thread adds; any may read."""

    def __init__(self) -> None:
        self._counts: Counter[Because] = Counter()
        self._last: deque[HubRefusal] = deque(maxlen=KEPT)

    def add(self, t_ns: int, because: Because, address: str, why: str, node: str = "") -> None:
        self._counts[because] += 1
        self._last.append(HubRefusal(t_ns, because, address, printable(why), printable(node)))

    def counts(self) -> dict[Because, int]:
        return dict(self._counts)

    def last(self) -> list[HubRefusal]:
        """The oldest first."""
        return list(self._last)


def printable(text: str) -> str:
    """One line of at most 200 characters that no terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in text[: _LONGEST + 1])[:_LONGEST]

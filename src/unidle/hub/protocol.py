"""What an engine gets from the hub: who is connected, what they sent, and what time it is with them."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from unidle.hub import frames


class ClockOffset(msgspec.Struct, frozen=True):
    """A client's CLOCK_BOOTTIME plus ``offset_ns`` is the controller's clock, give or take ``error_ns``."""

    offset_ns: int
    error_ns: int


class Peer(msgspec.Struct, frozen=True):
    """One connection with an accepted hello. ``id`` is never used twice; ``job`` is empty for an agent."""

    id: int
    kind: Literal["agent", "box", "reader"]
    node: str
    job: str
    boot: str
    address: str
    hello: frames.Hello


class Joined(msgspec.Struct, frozen=True):
    """A peer was welcomed. The first of its events."""

    peer: Peer


class Left(msgspec.Struct, frozen=True):
    """A connection is over. The last of its events. ``on_purpose``: it sent ``bye``."""

    peer: int
    why: str
    on_purpose: bool


class Received(msgspec.Struct, frozen=True, gc=False):
    """A frame that the hub does not answer itself."""

    peer: int
    frame: frames.Passed


class Hub(Protocol):
    """The server that boxes and agents dial. Used from one thread; no call blocks."""

    def poll(self) -> list[Joined | Left | Received]:
        """What happened since the last call; the order of each peer is kept."""
        ...

    def send(self, peer: int, frame: frames.Command) -> None:
        """Queue a frame. One for a peer that is gone is dropped; a peer that leaves more than 8 MiB unread is closed.

        Errors: ValueError for a frame above 1 MiB.
        """
        ...

    def offset(self, peer: int) -> ClockOffset | None:
        """None for a peer that is gone."""
        ...

    def acknowledged_ns(self, peer: int) -> int:
        """When the newest acknowledged pong of a peer was received, or its hello: on the controller's clock.

        It stays known after the peer's ``Left``, for the last 65,536 connections; 0 for others. Read the time before it,
        not after it: an acknowledgement in between then makes a lease longer, never shorter.
        """
        ...

    def box_token(self, node: str, job: str) -> str:
        """The token with which the box of this job on this node connects."""
        ...

    def forget(self, node: str) -> bool:
        """From now on a host may join under the name of this node with the join token; whether one had that name."""
        ...

    @property
    def wake_fd(self) -> int:
        """Readable when :meth:`poll` has something."""
        ...

    def close(self) -> None:
        """End all connections and the thread."""
        ...

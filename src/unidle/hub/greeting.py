"""What a hello gets: a welcome, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from unidle import wire
from unidle.hub import frames
from unidle.hub.limits import HubLimits
from unidle.hub.protocol import Peer
from unidle.hub.refusals import Because
from unidle.hub.tokens import BadToken, Tokens
from unidle.hub.vouching import NotKnownYet, Voucher


class HelloRefused(Exception):
    """The text and ``remedy`` are for the client."""

    def __init__(self, because: Because, why: str, remedy: str) -> None:
        super().__init__(why)
        self.because, self.remedy = because, remedy


def refused_for(error: Exception) -> tuple[Because, str, str]:
    """Why a connection is refused on which this was raised, the text, and the remedy for the client."""
    if isinstance(error, HelloRefused):
        return error.because, str(error), error.remedy
    if isinstance(error, wire.Malformed):
        return "malformed", str(error), "update the client"
    return "error", f"{type(error).__name__}: {error}", ""


class Greeted(NamedTuple):
    """An accepted hello. ``key``: a newer connection with the same one takes the place of an older one."""

    peer: Peer
    welcome: frames.Welcome
    key: tuple[str, str, str]
    newer: bool


class _Versioned(msgspec.Struct, frozen=True):
    """What hellos of all versions have."""

    f: str
    v: int


_VERSIONED = msgspec.json.Decoder(_Versioned)


class Greeting:
    """Checks hellos. ``fence``: the store's token of this controller.

    ``voucher`` is asked for tokens that are none of the hub's own; ``wake`` has the hello checked again.
    """

    def __init__(self, tokens: Tokens, fence: int, limits: HubLimits, wake: Callable[[], None]) -> None:
        self._tokens, self._fence, self._limits, self._wake = tokens, fence, limits, wake
        self.voucher: Voucher | None = None

    def taken(self, payload: bytes, peer: int, address: str) -> Greeted:
        """A hello's bytes, from ``address``, as the peer with this number. Errors: wire.Malformed, HelloRefused, NotKnownYet."""
        try:
            version = _VERSIONED.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise wire.Malformed(f"the first frame is no hello: {error}") from None
        if version.f != wire.HELLO:
            raise wire.Malformed("the first frame is no hello")
        if not wire.speaks(version.v):
            raise HelloRefused(
                "version",
                f"the client speaks version {version.v}, the hub version {wire.VERSION}",
                "update the older of the two",
            )
        hello = frames.from_client(payload)
        assert isinstance(hello, frames.Hello)
        vouched = self._check(hello)
        # who only claims to have joined learns its own token; it is on the disk of the host before the first pong
        own = self._tokens.agent(hello.node) if hello.kind == "agent" and not vouched else ""
        welcome = frames.Welcome(
            min(version.v, wire.VERSION),
            self._fence,
            self._limits.every_ns,
            self._limits.deadline_ns,
            token=own,
        )
        # the token is not kept: what a peer is shown as must not have it
        shown = msgspec.structs.replace(hello, token="")
        return Greeted(
            Peer(peer, hello.kind, hello.node, hello.job, hello.boot, address, shown),
            welcome,
            (hello.kind, hello.node, str(peer) if hello.kind == "reader" else hello.job),
            version.v > wire.VERSION,
        )

    def _check(self, hello: frames.Hello) -> bool:
        """Whether a voucher was needed for the token of a hello. Errors: HelloRefused, NotKnownYet."""
        try:
            self._tokens.check(hello)
        except BadToken as error:
            if self.voucher is None or not self.voucher.knows(hello):
                raise HelloRefused("token", str(error), error.remedy) from None
        else:
            return False
        why = self.voucher.refusal(hello, self._wake)
        if why is None:
            raise NotKnownYet
        if why:
            raise HelloRefused("token", why, "see the log of the controller")
        return True

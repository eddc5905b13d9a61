"""Connections of workers to the front door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from unidle.fill.serve.door import Door
from unidle.fill.serve.ticket import OpenRequest
from unidle.fill.serve.wire import (
    Cancel,
    Frames,
    FromWorker,
    Prefilled,
    Report,
    Submit,
    WorkerGreeting,
    frame,
)

_UNREAD_BYTES: Final = 256 << 20


class WorkerLink(asyncio.Protocol):
    """One worker. ``model``: the digest that it must greet with, None for the first one; ``gone``: called at its end with whether it greeted."""

    greeting: WorkerGreeting

    def __init__(
        self, door: Door, accepted: Callable[[WorkerGreeting], bool], gone: Callable[[WorkerLink], None]
    ) -> None:
        self.report = Report()
        self.sent = dict[int, OpenRequest]()
        self.greeted = False
        self._door = door
        self._accepted = accepted
        self._gone = gone
        self._frames = Frames(FromWorker)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except ValueError:  # of msgspec, too
            self.close()
            return
        for message in messages:
            if isinstance(message, WorkerGreeting):
                self._greet(message)
            elif self.greeted and isinstance(message, (Report, Prefilled)):
                self._door.received(self, message)

    def _greet(self, greeting: WorkerGreeting) -> None:
        if self.greeted or not self._accepted(greeting):
            self.close()
            return
        self.greeting = greeting
        self.greeted = True
        (self._door.bubbles if greeting.kind == "bubbles" else self._door.dedicated).append(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncio
        self._transport = None
        if self.greeted:
            self._door.lost(self)
        self._gone(self)

    def send(self, message: Submit | Cancel) -> None:
        """Errors: none; a worker that is gone or does not read is closed."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(frame(message))
        if self._transport.get_write_buffer_size() > _UNREAD_BYTES:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

"""A channel: everything between this endpoint and one peer. Methods without an underscore are for any thread."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from unidle.span.wan.api import BadFrame, ChannelClosed, ChannelLost, Pending, Settings, Stats, WanError
from unidle.span.wan.flow import WanFlow
from unidle.span.wan.frames import BYE, GRANT, PING, WanFrame, tag_number
from unidle.span.wan.handshake import Hello
from unidle.span.wan.inbound import Inbound, Landing
from unidle.span.wan.outbound import Chunk, Outbound
from unidle.span.wan.sockets import TcpInfo, pace, tcp_info
from unidle.span.wan.sums import Summer

_TURN_CHUNKS: Final = 32  # then flows are read again, however much the kernel would still take
_LEAVE_NS: Final = 2_000_000_000


class Helper(Protocol):
    """A thread that opens a flow."""

    def stop(self) -> None: ...


class Loop(Protocol):
    """What a channel needs of its endpoint."""

    summer: Summer

    def soon(self, call: Callable[[], None]) -> None: ...

    def watch(self, channel: Channel, flow: WanFlow, events: int) -> None: ...

    def dial(self, channel: Channel, index: int) -> None: ...


class Channel:
    """Made by :meth:`Endpoint.connect` and :meth:`Endpoint.accept`."""

    def __init__(
        self, loop: Loop, run: int, settings: Settings, peer: str, key: str, address: tuple[str, int] | None
    ) -> None:
        self.peer, self.address, self.key = peer, address, key
        self.tls_name = self.lane = ""
        self.instance = ""  # of the peer, from the first flow on
        self.error: WanError | None = None
        self._loop, self._run, self._settings = loop, run, settings
        self.helpers: set[Helper] = set()  # that open its flows
        self._stats = Stats()
        self._out = Outbound(run, settings, self._stats, loop.summer)
        self._in = Inbound(settings, self._stats)
        self._flows: dict[int, WanFlow] = {}
        self._seen: set[int] = set()
        self._opened, self._ended = threading.Event(), threading.Event()
        self._cut_ns = time.monotonic_ns()
        self._why = ""
        self._leaving_ns = 0  # when this side began to close
        self._peer_leaves = False
        self._order = threading.Lock()
        self.more = False  # the last pump stopped before it had to

    # -- for any thread ------------------------------------------------------------------------------

    def send(self, tag: int | str, buffer: Any, not_before_ns: int = 0) -> Pending[int]:
        """Send a contiguous buffer, whose bytes must stay as they are until the future is done: its number of bytes.

        The k-th message of a tag goes into the k-th buffer that the peer posts for it. ``not_before_ns`` is the slot, in
        the time of ``time.monotonic_ns``: no byte of it leaves before. Errors of the future: :class:`WanError`.
        """
        view, number = memoryview(buffer).cast("B"), tag_number(tag)
        future: Pending[int] = Pending(self._stats)

        def add() -> None:
            if self._told_error(future):
                return
            self._out.add(number, view, future, not_before_ns)

        with self._order:
            self._loop.soon(add)
        return future

    def recv(self, tag: int | str, into: Any = None) -> Pending[memoryview]:
        """Receive the next message of a tag into a writable buffer of just its length, or into a new one.

        The future's result is the buffer; nothing writes to it any more then. Errors of the future: :class:`WanError`,
        :class:`WrongSize` among them.
        """
        number = tag_number(tag)
        view = None if into is None else memoryview(into).cast("B")
        if view is not None and view.readonly:
            raise ValueError(
                "into: is read-only (got a buffer of bytes); give a bytearray or another writable buffer"
            )
        future: Pending[memoryview] = Pending(self._stats)

        def post() -> None:
            if self._told_error(future):
                return
            grant = self._in.post(number, view, future)
            if flow := self._any_flow():
                flow.tell(GRANT, grant, number)

        with self._order:
            self._loop.soon(post)
        return future

    def wait_open(self, timeout: float | None = None) -> None:
        """Wait until one flow is open. Errors: what ended the channel, or :class:`ChannelLost` after ``timeout`` s."""
        if not self._opened.wait(timeout) and self.error is None:
            raise ChannelLost(
                f"{self.peer} did not connect within {timeout} s; is it started, with this address and run?"
            )
        if self.error is not None:
            raise self.error

    def stats(self) -> Stats:
        """A copy of the counts."""
        return dataclasses.replace(self._stats)

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def kept(self) -> int:
        """Number of messages, buffers, tags and gaps that are kept now. It depends only on data in flight."""
        return self._out.kept + self._in.kept

    @property
    def flows_open(self) -> int:
        """How many flows are connected now."""
        return len(self._flows)

    def tcp_infos(self) -> list[TcpInfo]:
        """TCP information of each connected flow."""
        return [found for flow in list(self._flows.values()) if (found := tcp_info(flow.link)) is not None]

    def close(self, timeout: float = 10.0) -> None:
        """Wait for what was sent, at most ``timeout`` s, and end. What is still pending fails: :class:`ChannelClosed`."""
        flushed = threading.Event()
        futures: list[concurrent.futures.Future[int]] = []

        def look() -> None:
            futures.extend(self._out.pending())
            flushed.set()

        self._loop.soon(look)
        if not self._ended.is_set() and flushed.wait(timeout):
            concurrent.futures.wait(futures, timeout)
        self._loop.soon(self._leave)
        self._ended.wait(timeout)

    # -- in the loop's thread ------------------------------------------------------------------------

    def _told_error(self, future: Pending[Any]) -> bool:
        if self.error is None and self._leaving_ns:
            future.set_exception(ChannelClosed(f"the channel to {self.peer} is closed"))
        elif self.error is not None:
            future.set_exception(self.error)
        else:
            return False
        return True

    def _any_flow(self) -> WanFlow | None:
        """The flow with the least before it."""
        return min(self._flows.values(), key=lambda flow: not flow.idle, default=None)

    def attach(self, link: socket.socket, hello: Hello, now_ns: int) -> None:
        """A flow was opened or reopened."""
        if self.error is not None or self._leaving_ns:
            link.close()
            return
        if (old := self._flows.get(hello.flow)) is not None:
            self._lose(old)
        self.instance = hello.instance
        self._out.peer_early_bytes = hello.early_bytes
        self._flows[hello.flow] = WanFlow(link, hello.flow, self._run, self, now_ns)
        self._stats.connects += 1
        self._stats.reconnects += hello.flow in self._seen
        self._seen.add(hello.flow)
        if rate := self._settings.rate_bytes_per_s:
            in_kernel = self._settings.kernel_pacing and pace(link, max(rate // hello.flows, 1))
            self._out.bucket = self._out.bucket or not in_kernel
        self._grant_again()
        self._opened.set()

    def on_event(self, flow: WanFlow, mask: int, now_ns: int) -> None:
        """Its socket can be read or written."""
        if self._flows.get(flow.index) is not flow:
            return  # it was closed in this turn
        try:
            if mask & selectors.EVENT_READ:
                flow.read(now_ns)
            if mask & selectors.EVENT_WRITE:
                flow.write(now_ns)
        except (OSError, BadFrame) as error:
            self._stats.header_failures += isinstance(error, BadFrame)
            self._lose(flow)

    def pump(self, now_ns: int) -> None:
        """Give each idle flow a chunk, as long as chunks are left and the kernel accepts them."""
        given, self.more, empty = 0, False, False
        self._out.waits_for = ""
        waiting = list(self._flows.values())
        while waiting and not self.more:
            busy = []
            for flow in waiting:
                try:
                    if flow.write(now_ns) and not empty:
                        chunk = None if self._leaving_ns else self._out.next_chunk(now_ns)
                        empty = chunk is None
                        if chunk is not None:
                            flow.carry(chunk)
                            given += 1
                            if flow.write(now_ns):
                                busy.append(flow)
                except OSError:
                    self._lose(flow)
            self.more = given >= _TURN_CHUNKS
            waiting = busy if not empty else []
        for flow in list(self._flows.values()):
            self._loop.watch(self, flow, selectors.EVENT_READ | (0 if flow.idle else selectors.EVENT_WRITE))
        self._why = self._blocked_by()

    def _blocked_by(self) -> str:
        if not self._flows:
            return "cut" if any(True for _ in self._out.pending()) or self._in.awaited else ""
        if self._out.waits_for:
            return self._out.waits_for
        return "wire" if self._stats.in_flight_bytes or self.more else ""

    def account(self, ns: int) -> None:
        """Account for the time since the last pump."""
        if self._why:
            self._stats.blocked(self._why, ns)

    def due_ns(self) -> int | None:
        """Time of the next check without an event."""
        return self._out.due_ns() if self._flows else None

    def tick(self, now_ns: int) -> None:
        """Handle heartbeats, dead flows and timeouts."""
        if self._leaving_ns:
            if not self._flows or now_ns - self._leaving_ns > _LEAVE_NS:
                self.end(ChannelClosed(f"the channel to {self.peer} is closed"))
            return
        for flow in list(self._flows.values()):
            if now_ns - flow.heard_ns > self._settings.dead_s * 1e9:
                self._lose(flow)
            elif now_ns - flow.sent_ns > self._settings.heartbeat_s * 1e9 and flow.idle:
                flow.tell(PING)
        cut_s, most_s = (now_ns - self._cut_ns) / 1e9, self._settings.give_up_s
        if not self._seen and self._settings.first_s:
            most_s = self._settings.first_s
        if self.error is None and not self._flows and cut_s > most_s:
            at = f" at {self.address[0]}:{self.address[1]}" if self.address else ""
            self.end(
                ChannelLost(
                    f"{self.peer}{at} was cut for {cut_s:.1f} s (give_up_s {most_s:g}):"
                    f" {self._out.outstanding_bytes:,} bytes outstanding, {self._in.awaited} posted buffers not full;"
                    " check that it runs and that the link is up, or use a larger give_up_s"
                )
            )

    def _lose(self, flow: WanFlow) -> None:
        """A flow is gone: what it carried goes over the others, and it is opened again by the side that did."""
        if self._flows.get(flow.index) is not flow:
            return
        del self._flows[flow.index]
        self._loop.watch(self, flow, 0)
        self._out.again(flow.close())
        self._grant_again()
        if not self._flows:
            self._cut_ns = max(flow.heard_ns, self._cut_ns)
            if self._peer_leaves or self._leaving_ns:
                self.end(
                    ChannelClosed(
                        f"the channel to {self.peer} was closed {'here' if self._leaving_ns else 'by the peer'}"
                    )
                )
                return
        if self.address is not None and self.error is None and not self._leaving_ns and not self._peer_leaves:
            self._loop.dial(self, flow.index)

    def _grant_again(self) -> None:
        """Frames that a closed flow may not have delivered to the peer."""
        if flow := self._any_flow():
            for number, tag in self._in.grants():
                flow.tell(GRANT, number, tag)

    def _leave(self) -> None:
        if self.error is not None or self._leaving_ns:
            return
        self._leaving_ns = time.monotonic_ns()
        for flow in list(self._flows.values()):
            flow.tell(BYE)
            try:
                flow.write(self._leaving_ns)
                flow.link.shutdown(socket.SHUT_WR)
            except OSError:
                self._lose(flow)
        if not self._flows:
            self.end(ChannelClosed(f"the channel to {self.peer} is closed"))

    def end(self, error: WanError) -> None:
        """End the channel: all pending futures fail with the error."""
        if self.error is not None:
            return
        self.error = error
        for flow in list(self._flows.values()):
            self._loop.watch(self, flow, 0)
            flow.close()
        self._flows.clear()
        for helper in self.helpers:
            helper.stop()
        self._why = ""
        for sent in self._out.clear():
            sent.set_exception(error)
        for awaited in self._in.clear():
            awaited.set_exception(error)
        self._opened.set()
        self._ended.set()

    # -- what flows tell -----------------------------------------------------------------------------

    def begin(self, frame: WanFrame) -> Landing:
        return self._in.begin(frame)

    def end_of(self, landing: Landing, sound: bool) -> None:
        self._in.end(landing, sound)
        self._stats.crc_failures += not sound

    def lost(self, landing: Landing) -> None:
        """The flow of a chunk ended before all of it arrived."""
        self._in.end(landing, sound=False)

    def settled(self, chunk: Chunk) -> None:
        self._out.settled(chunk)

    def damaged(self, chunk: Chunk) -> None:
        self._stats.negative_acks += 1
        if chunk.tries >= self._settings.tries:
            self._loop.soon(lambda: self.end(self._damages(chunk)))
        self._out.again([chunk])

    def _damages(self, chunk: Chunk) -> ChannelLost:
        size = len(chunk.payload)
        return ChannelLost(
            f"the link to {self.peer} damages what it carries: one chunk of {size:,} bytes failed its"
            f" checksum {chunk.tries} times; check cable, card and middleboxes"
        )

    def granted(self, number: int, tag: int) -> None:
        self._out.granted(number, tag)

    def saw(self, below: int) -> None:
        self._in.saw(below)

    @property
    def seen(self) -> int:
        """All grants of the peer below this one came."""
        return self._out.seen

    def peer_leaves(self) -> None:
        self._peer_leaves = True

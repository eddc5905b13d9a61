"""An endpoint: one peer of a run, its listening port, and the thread that moves the bytes of all its channels."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import selectors
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Self

from unidle.span.wan.api import ChannelClosed, ChannelLost, Refused, Settings, WanError
from unidle.span.wan.channel import Channel
from unidle.span.wan.dialing import Dialer, Greeter
from unidle.span.wan.flow import WanFlow
from unidle.span.wan.frames import run_key
from unidle.span.wan.handshake import Hello, Identity
from unidle.span.wan.sockets import listener
from unidle.span.wan.sums import Summer

_GREETERS_MOST: Final = 64
_REFUSALS_KEPT: Final = 32
_GONE_MOST: Final = 4096


class Endpoint:
    """One peer of a run.

    ``peer`` is its name, ``secret`` what all peers of the run know, ``listen`` the address where others connect (port 0: any,
    see :attr:`address`). With TLS, ``tls_server`` is for those that connect here and ``tls_client`` for where this one does.
    ``settings_of`` has those of channels that differ from ``settings``, by peer (``peer#lane`` for one with a lane).
    Errors: :class:`PortTaken`, ``OSError``, ``ValueError``.
    """

    def __init__(
        self,
        peer: str,
        *,
        run: str,
        secret: bytes,
        listen: tuple[str, int] | None = None,
        settings: Settings | None = None,
        settings_of: Mapping[str, Settings] | None = None,
        tls_server: ssl.SSLContext | None = None,
        tls_client: ssl.SSLContext | None = None,
    ) -> None:
        if not secret:
            raise ValueError("secret: is empty; make one for each run, for instance secrets.token_bytes(32)")
        self.settings = settings or Settings()
        self._settings_of = dict(settings_of or {})
        self._me = Identity(peer, run, secret, secrets.token_hex(8), self.settings.early_bytes)
        self._tls_server, self._tls_client = tls_server, tls_client
        self._listener = listener(listen, self.settings) if listen else None
        self.address: tuple[str, int] | None = self._listener.getsockname()[:2] if self._listener else None
        self.refusals: deque[str] = deque(maxlen=_REFUSALS_KEPT)
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._all: list[Channel] = []
        self._gone: dict[str, None] = {}  # instances of channels that ended, the oldest first
        self._helpers: set[Dialer | Greeter] = set()
        self._calls: deque[Callable[[], None]] = deque()
        self._numbers = itertools.count(1)
        self._stopping = self._over = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept_one)
        self.summer = Summer(f"wan-sums-{peer}")
        self._thread = threading.Thread(target=self._run, name=f"wan-{peer}", daemon=True)
        self._thread.start()

    # -- for any thread ------------------------------------------------------------------------------

    def connect(
        self,
        peer: str,
        address: tuple[str, int],
        flows: int | None = None,
        tls_name: str = "",
        lane: str = "",
    ) -> Channel:
        """A channel whose flows this side opens, and opens again. The peer calls :meth:`accept`, or need not.

        It returns at once; :meth:`Channel.wait_open` waits. A refusal fails all that is pending: :class:`Refused`.
        ``lane`` names one of several channels to the same peer.
        """
        name = laned(peer, lane)
        settings = self._settings_of.get(name, self.settings)
        settings = replace(settings, flows=flows or settings.flows)
        key = f"{self._me.instance}.{next(self._numbers)}"
        channel = Channel(self, run_key(self._me.run), settings, peer, key, address)
        channel.tls_name, channel.lane = tls_name or address[0], lane
        with self._lock:
            if self._stopping:
                raise ChannelClosed(f"endpoint {self._me.peer} is closed; make another")
            if (old := self._channels.get(name)) is not None and old.error is None:
                raise WanError(f"peer: there is a channel to {name!r} already; close that one first")
            self._channels[name] = channel
        self.soon(lambda: self._all.append(channel))
        for index in range(settings.flows):
            self.soon(lambda index=index: self.dial(channel, index))  # type: ignore[misc]
        return channel

    def accept(self, peer: str, lane: str = "") -> Channel:
        """The channel that a peer opens or will open. It returns at once; :meth:`Channel.wait_open` waits."""
        with self._lock:
            return self._accepting(laned(peer, lane))

    def close(self, timeout: float = 10.0) -> None:
        """Close all channels, and end all threads and sockets of this endpoint."""
        with self._lock:
            channels, self._stopping = list(self._channels.values()), True
        for channel in channels:
            channel.close(timeout)
        self.soon(lambda: None)
        self._thread.join()
        self.summer.close()
        for helper in list(self._helpers):
            helper.stop()
        for helper in list(self._helpers):
            helper.join()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the loop's thread."""
        self._calls.append(call)
        if self._over:
            self._drain()
            return
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: nobody is there
            self._waker.send(b"\0")

    # -- the loop ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._turns()
        except BaseException as error:  # nobody would settle a future any more
            for channel in self._all:
                channel.end(
                    WanError(f"the thread of endpoint {self._me.peer} failed: {error!r}; please report it")
                )
            raise
        finally:
            self._over = True
            self._drain()

    def _turns(self) -> None:
        tick_ns = int(self.settings.heartbeat_s * 5e8)
        next_tick = before = time.monotonic_ns()
        while not (self._stopping and all(channel.error is not None for channel in self._all)):
            events = self._selector.select(self._timeout_s(before, next_tick))
            now = time.monotonic_ns()
            for channel in self._all:
                channel.account(now - before)
            before = now
            for key, mask in events:
                self._handle(key.data, mask, now)
            for _ in range(len(self._calls)):
                self._calls.popleft()()
            for channel in self._all:
                channel.pump(now)
            if now >= next_tick:
                next_tick = now + tick_ns
                self._tick(now)

    def _drain(self) -> None:
        """What was asked for after the end fails: it is closed."""
        with contextlib.suppress(IndexError):
            while True:
                self._calls.popleft()()

    def _timeout_s(self, now: int, next_tick: int) -> float:
        if self._calls or any(channel.more for channel in self._all):
            return 0.0
        due = [due for channel in self._all if (due := channel.due_ns()) is not None]
        return max(min([next_tick, *due]) - now, 0) / 1e9

    def _handle(self, data: Any, mask: int, now: int) -> None:
        if data is None:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        elif callable(data):
            data()
        else:
            channel, flow = data
            channel.on_event(flow, mask, now)

    def _tick(self, now: int) -> None:
        for channel in self._all:
            channel.tick(now)
        for ended in [channel for channel in self._all if channel.error is not None]:
            self._all.remove(ended)
            with self._lock:
                self._leave_out(ended.instance)

    def _leave_out(self, instance: str) -> None:
        """Let this one in no more."""
        self._gone[instance] = None
        while len(self._gone) > _GONE_MOST:
            del self._gone[next(iter(self._gone))]

    def watch(self, channel: Channel, flow: WanFlow, events: int) -> None:
        """What the selector looks for on a flow's socket; 0 for no more."""
        if events == flow.watched:
            return
        if not flow.watched:
            self._selector.register(flow.link, events, (channel, flow))
        elif events:
            self._selector.modify(flow.link, events, (channel, flow))
        else:
            self._selector.unregister(flow.link)
        flow.watched = events

    # -- opening flows -------------------------------------------------------------------------------

    def dial(self, channel: Channel, index: int) -> None:
        """Open one flow of a channel, in a thread."""
        if channel.address is None or channel.error is not None or self._stopping:
            return
        tls = (self._tls_client, channel.tls_name) if self._tls_client is not None else None
        me = replace(self._me, peer=laned(self._me.peer, channel.lane), instance=channel.key)
        settings = channel.settings

        def done(dialer: Dialer, link: socket.socket | None, told: Hello | Refused | None) -> None:
            self.soon(lambda: self._dialed(channel, dialer, link, told))

        dialer = Dialer(me, channel.peer, channel.address, index, settings, tls, done)
        channel.helpers.add(dialer)
        self._start(dialer)

    def _start(self, helper: Dialer | Greeter) -> None:
        self._helpers.add(helper)
        helper.start()

    def _dialed(
        self, channel: Channel, dialer: Dialer, link: socket.socket | None, told: Hello | Refused | None
    ) -> None:
        self._helpers.discard(dialer)
        channel.helpers.discard(dialer)
        if isinstance(told, Refused):
            self.refusals.append(str(told))
            channel.end(told)
        elif link is not None and told is not None:
            if channel.instance and channel.instance != told.instance:
                link.close()
                channel.end(
                    ChannelLost(
                        f"{channel.peer} was started again; data in transit are lost: resume both sides"
                    )
                )
            else:
                channel.attach(link, told, time.monotonic_ns())

    def _accept_one(self) -> None:
        assert self._listener is not None
        try:
            link, address = self._listener.accept()
        except OSError:
            return
        greeters = [helper for helper in self._helpers if isinstance(helper, Greeter)]
        if (
            self._stopping or len(greeters) >= 2 * _GREETERS_MOST
        ):  # those that were stopped have not all ended
            link.close()
            return
        _make_room([greeter for greeter in greeters if not greeter.stopped])
        self._start(
            Greeter(link, address[0], self._me, self.settings, self._tls_server, self._admit, self._greeted)
        )

    def _admit(self, hello: Hello) -> str:
        """Why a peer that proved itself is not let in; empty where it is. In a greeter's thread."""
        with self._lock:
            if hello.instance in self._gone or self._stopping:
                return "the channel was closed here; open a new one"
            channel = self._channels.get(hello.peer)
            if channel is not None and channel.error is None:
                if channel.address is not None:
                    return "both sides connect; one of them has to accept"
                if channel.instance and channel.instance != hello.instance:
                    self._leave_out(channel.instance)
                    again = ChannelLost(
                        f"{hello.peer} was started again; data in transit are lost: resume both sides"
                    )
                    self.soon(lambda old=channel: old.end(again))  # type: ignore[misc]
                    del self._channels[hello.peer]
            self._accepting(hello.peer).instance = hello.instance
            return ""

    def _accepting(self, peer: str) -> Channel:
        if self._stopping:
            raise ChannelClosed(f"endpoint {self._me.peer} is closed; make another")
        channel = self._channels.get(peer)
        if channel is None or channel.error is not None:
            channel = self._channels[peer] = Channel(
                self, run_key(self._me.run), self._settings_of.get(peer, self.settings), peer, "", None
            )
            self.soon(lambda: self._all.append(channel))
        return channel

    def _greeted(self, greeter: Greeter, link: socket.socket | None, told: Hello | Refused | None) -> None:
        self.soon(lambda: self._let_in(greeter, link, told))

    def _let_in(self, greeter: Greeter, link: socket.socket | None, told: Hello | Refused | None) -> None:
        self._helpers.discard(greeter)
        if isinstance(told, Refused):
            self.refusals.append(str(told))
        elif link is not None and told is not None:
            channel = self._channels.get(told.peer)
            if channel is None or channel.instance != told.instance:
                link.close()
            else:
                channel.attach(link, told, time.monotonic_ns())


def laned(peer: str, lane: str) -> str:
    """The name of a peer in one of several channels."""
    return f"{peer}#{lane}" if lane else peer


def _make_room(greeters: list[Greeter]) -> None:
    """Where there are as many as there may be, the oldest of the address that has the most gives way: a peer needs milliseconds."""
    if len(greeters) >= _GREETERS_MOST:
        crowd = Counter(greeter.host for greeter in greeters).most_common(1)[0][0]
        min((each for each in greeters if each.host == crowd), key=lambda each: each.began_s).stop()

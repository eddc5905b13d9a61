"""The client's side of the hub, for agents: it dials, sends a hello, answers pings, and dials again when the connection is lost.

One thread has the socket. The owner calls :meth:`HubClient.poll` and :meth:`HubClient.send` from its own thread, and
never waits.
"""

from __future__ import annotations

import os
import random
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from unidle import wire
from unidle.clock import boottime_ns
from unidle.hub import frames
from unidle.hub.authority import SERVER_NAME
from unidle.hub.refusals import printable
from unidle.hub.stream import FrameStream, StreamLost, read_buffer
from unidle.hub.verify import authority_is_own, client_context, exact_context

_LEAST_SILENCE_NS: Final = 5_000_000_000
_SILENT_PINGS: Final = 5  # the hub is taken for unreachable after so many intervals without one
_STABLE_NS: Final = 10_000_000_000  # a connection that lasted so long makes the next wait short again
_BYE_NS: Final = 1_000_000_000


class Welcomed(msgspec.Struct, frozen=True):
    """A connection is open. ``welcome.token`` is kept already, if the client was given ``keep``."""

    welcome: frames.Welcome


class Acknowledged(msgspec.Struct, frozen=True):
    """The hub received pong ``n`` of this connection, and so all that was sent before it."""

    n: int


class Lost(msgspec.Struct, frozen=True):
    """There is no connection any more, or none could be made. What was sent and not acknowledged may be lost.

    ``refused``: the hub's reason, where it gave one. ``retry_ns``: when the next attempt follows, from now.
    """

    why: str
    retry_ns: int
    refused: frames.Refused | None = None


ClientEvent = Welcomed | Acknowledged | Lost | frames.Command


@dataclass(frozen=True, slots=True)
class Dialling:
    """Times of a client, in ns: ``within_ns`` for a connection, and again for TLS and hello.

    Each failed attempt doubles the wait up to ``longest_ns``; half of it is chance: a fleet that lost its hub does not
    come back at one moment.
    """

    first_ns: int = 500_000_000
    longest_ns: int = 10_000_000_000
    within_ns: int = int(wire.HELLO_WITHIN_S * 1e9)


class HubClient:
    """A connection to the hub at ``host:port`` that is made again and again until :meth:`close`.

    ``hello`` gives what the client is and holds now; time and number are filled in. It is called in the thread of the client,
    and so is ``keep``, with the client's own token, before the first pong: its write must be durable when it
    returns. ``authority``: certificates in PEM, empty for those of the system; ``exactly``: the hub's own certificates, of which
    one has to be shown, whatever its names are.
    """

    def __init__(
        self,
        address: tuple[str, int],
        authority: str,
        hello: Callable[[], frames.Hello],
        keep: Callable[[str], object] | None = None,
        dialling: Dialling | None = None,
        exactly: str = "",
    ) -> None:
        self._address, self._hello, self._keep = address, hello, keep
        self._context = exact_context(exactly) if exactly else client_context(authority)
        self._own = authority_is_own(authority)
        self._name = SERVER_NAME if self._own else address[0]
        self._dialling = dialling or Dialling()
        self._events: deque[ClientEvent] = deque()
        self._out = _SendQueue()
        self._stopping = False
        self._bye: bytes | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._bell, select.POLLIN)
        self._buffer = read_buffer()
        self._failures = self._pongs = 0
        self._thread = threading.Thread(target=self._run, name="unidle-hub-client", daemon=True)
        self._thread.start()

    # called by the owner

    def poll(self) -> list[ClientEvent]:
        """What happened since the last call, the oldest first."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        return [self._events.popleft() for _ in range(len(self._events))]

    def send(self, frame: frames.FromClient) -> bool:
        """Queue a frame; False without a connection, or where 8 MiB are queued already: it is not kept for the next one.

        Errors: ValueError for a frame above 1 MiB.
        """
        if not self._out.put(frames.encoded(frame)):
            return False
        os.eventfd_write(self._bell, 1)
        return True

    def redirect(self, address: tuple[str, int]) -> None:
        """Dial there from the next connection on. The one that is open stays."""
        self._name = SERVER_NAME if self._own else address[0]
        self._address = address

    @property
    def pongs(self) -> int:
        """Pongs of this connection so far: a frame that is queued now was received once a later one is acknowledged."""
        return self._pongs

    @property
    def wake_fd(self) -> int:
        """Readable when :meth:`poll` has something."""
        return self._wake

    def close(self, bye: str | None = None) -> None:
        """End the connection and the thread, with a ``bye`` if a reason is given. What was not polled is dropped."""
        if bye is not None:
            self._bye = frames.encoded(frames.Bye(bye))
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._wake)
        os.close(self._bell)

    # the thread

    def _run(self) -> None:
        while not self._stopping:
            began_ns = boottime_ns()
            lost = self._connect_once()
            self._failures = 0 if boottime_ns() - began_ns > _STABLE_NS else self._failures + 1
            wait_ns = self._wait_ns()
            self._tell(msgspec.structs.replace(lost, retry_ns=wait_ns))
            self._pause(boottime_ns() + wait_ns)

    def _connect_once(self) -> Lost:
        """One connection, until it is over."""
        refused: list[frames.Refused] = []
        stream: FrameStream | None = None
        try:
            stream = self._dial(boottime_ns() + self._dialling.within_ns)
            # the hub counts from here: a client that waited in its queue has as much time as any other
            self._talk(stream, boottime_ns() + self._dialling.within_ns, refused)
            why = "closed"
        except (StreamLost, wire.Malformed, OSError, ValueError) as error:
            why = str(error)
        except Exception as error:  # of `hello` and `keep` of the owner: it has to go on dialling
            why = f"{type(error).__name__}: {error}"
        finally:
            self._out.close()
            if stream is not None:
                stream.close()
        return Lost(printable(why), 0, refused[0] if refused else None)

    def _wait_ns(self) -> int:
        longest = min(self._dialling.first_ns << min(self._failures, 20), self._dialling.longest_ns)
        return longest // 2 + random.randrange(longest // 2 + 1)

    def _pause(self, until_ns: int) -> None:
        while not self._stopping and (left_ns := until_ns - boottime_ns()) > 0:
            self._poller.poll(left_ns // 1_000_000 + 1)
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)

    def _dial(self, deadline_ns: int) -> FrameStream:
        """A connection whose TLS is not established yet. Each address of the host is tried. Errors: OSError."""
        last: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(max(0.01, (deadline_ns - boottime_ns()) / 1e9))
                sock.connect(address)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                tls = self._context.wrap_socket(
                    sock, do_handshake_on_connect=False, server_hostname=self._name
                )
                return FrameStream(tls, wire.FRAME_BYTES)
            except OSError as error:
                sock.close()
                last = error
        raise last or OSError("the hub's host has no address")

    def _talk(self, stream: FrameStream, deadline_ns: int, refused: list[frames.Refused]) -> None:
        """Until the connection is over. Errors: StreamLost, wire.Malformed."""
        fd = stream.sock.fileno()
        talk = _Talk(stream, deadline_ns)
        events = select.POLLOUT  # the client begins with TLS
        try:
            while True:
                self._poller.register(fd, events)
                left_ns = talk.until_ns - boottime_ns()
                if left_ns <= 0:
                    raise StreamLost(
                        "the hub does not answer" if talk.welcome is None else "the hub is silent"
                    )
                is_last = self._stopping and talk.welcome is not None
                self._poller.poll(0 if is_last else left_ns // 1_000_000 + 1)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                if self._stopping and self._may_go(talk, fd):
                    return
                events = self._step(talk, refused)
        finally:
            with suppress(KeyError):
                self._poller.unregister(fd)

    def _step(self, talk: _Talk, refused: list[frames.Refused]) -> int:
        """One turn; what to wait for next."""
        stream = talk.stream
        if not stream.ready:
            waits = stream.handshake()
            if waits:
                return select.POLLIN if waits == 1 else select.POLLOUT
            hello = msgspec.structs.replace(self._hello(), now=boottime_ns(), n=0)
            stream.send(frames.encoded(hello, wire.HELLO_BYTES))
        while (data := stream.receive(self._buffer)) is not None:
            if not data:
                raise StreamLost(refused[0].why if refused else "the connection ended")
            for payload in stream.frames(data):
                self._take(talk, payload, refused)
        while stream.unsent < wire.FRAME_BYTES and (queued := self._out.take()):
            stream.send(queued)
        return select.POLLIN if stream.flush() else select.POLLIN | select.POLLOUT

    def _take(self, talk: _Talk, payload: bytes, refused: list[frames.Refused]) -> None:
        welcome = talk.welcome
        frame = frames.to_client(payload, newer=welcome is not None and talk.newer)
        if isinstance(frame, frames.Refused):
            refused.append(frame)
        elif isinstance(frame, frames.Welcome):
            if welcome is not None:
                raise wire.Malformed("a second welcome")
            if frame.token and self._keep is not None:
                self._keep(
                    frame.token
                )  # before the first pong, which makes the join token void for this node
            talk.opened(frame)
            self._out.open()
            self._tell(Welcomed(frame))
        elif welcome is None:
            raise wire.Malformed("a frame before the welcome")
        elif isinstance(frame, frames.Ping):
            talk.heard()
            talk.pongs += 1
            self._pongs = talk.pongs
            # what is queued goes first: an acknowledged pong acknowledges it too
            while queued := self._out.take():
                talk.stream.send(queued)
            talk.stream.send(frames.encoded(frames.Pong(talk.pongs, frame.n, boottime_ns())))
            if frame.ack > talk.acknowledged:
                talk.acknowledged = frame.ack
                self._tell(Acknowledged(frame.ack))
        elif frame is not None:
            self._tell(frame)

    def _may_go(self, talk: _Talk, fd: int) -> bool:
        """After :meth:`close`: whether the connection is over. A hub that has the hello is waited for, to say bye to it."""
        if talk.welcome is not None:
            return self._left(talk.stream, fd)
        talk.until_ns = min(talk.until_ns, boottime_ns() + _BYE_NS)
        return self._bye is None or not talk.stream.ready

    def _left(self, stream: FrameStream, fd: int) -> bool:
        """Send what is queued and the bye; True in any case."""
        deadline_ns = boottime_ns() + _BYE_NS
        with suppress(StreamLost):
            while queued := self._out.take():
                stream.send(queued)
            if self._bye is not None:
                stream.send(self._bye)
            while not stream.flush() and (left_ns := deadline_ns - boottime_ns()) > 0:
                self._poller.modify(fd, select.POLLOUT)
                self._poller.poll(left_ns // 1_000_000 + 1)
            stream.finish()
        return True

    def _tell(self, event: ClientEvent) -> None:
        self._events.append(event)
        os.eventfd_write(self._wake, 1)


class _SendQueue:
    """Frames for the connection that is open now: one thread puts, one takes. Nothing is kept for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._open = False

    def open(self) -> None:
        with self._lock:
            self._open = True

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._frames.clear()
            self._bytes = 0

    def put(self, data: bytes) -> bool:
        """Whether it is queued."""
        with self._lock:
            if not self._open or self._bytes + len(data) > wire.UNREAD_BYTES:
                return False
            self._bytes += len(data)
            self._frames.append(data)
            return True

    def take(self) -> bytes | None:
        with self._lock:
            if not self._frames:
                return None
            data = self._frames.popleft()
            self._bytes -= len(data)
            return data


class _Talk:
    """One connection of a client. ``until_ns``: when it is given up, on this host's boot-time clock."""

    def __init__(self, stream: FrameStream, deadline_ns: int) -> None:
        self.stream = stream
        self.until_ns = deadline_ns
        self.welcome: frames.Welcome | None = None
        self.newer = False
        self.pongs = self.acknowledged = 0
        self._silence_ns = _LEAST_SILENCE_NS

    def opened(self, welcome: frames.Welcome) -> None:
        if not wire.speaks(welcome.v):
            raise wire.Malformed(f"the hub speaks version {welcome.v}, this client version {wire.VERSION}")
        self.welcome, self.newer = welcome, welcome.v > wire.VERSION
        self._silence_ns = max(_LEAST_SILENCE_NS, _SILENT_PINGS * welcome.every_ns)
        self.heard()

    def heard(self) -> None:
        self.until_ns = boottime_ns() + self._silence_ns

"""The hub's thread: accepts, reads, writes, pings. Nothing in it waits for one connection."""

from __future__ import annotations

import select
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from unidle import wire
from unidle.clock import Clock, boottime_ns
from unidle.hub import frames
from unidle.hub.acceptor import Acceptor
from unidle.hub.authority import ServerIdentity
from unidle.hub.bell import HubBell
from unidle.hub.connection import Connection, ConnectionStage
from unidle.hub.events import PolledEvents
from unidle.hub.greeting import Greeting, HelloRefused, refused_for
from unidle.hub.limits import HubLimits
from unidle.hub.ping_times import PingTimes
from unidle.hub.protocol import Joined, Left, Peer, Received
from unidle.hub.refusals import Because, Refusals
from unidle.hub.stream import StreamLost, read_buffer
from unidle.hub.tokens import Tokens
from unidle.hub.ungreeted import Ungreeted
from unidle.hub.vouching import NotKnownYet

T = TypeVar("T")
_IN: Final = select.EPOLLIN | select.EPOLLRDHUP
_OUT: Final = select.EPOLLOUT
_BROKEN: Final = select.EPOLLHUP | select.EPOLLERR
_EVENTS: Final = 1024
_OPEN: Final = ConnectionStage.OPEN
_GONE: Final = 65536
_READABLE: Final = int(select.EPOLLIN)  # and nothing else
_TURN_NS: Final = 2_000_000  # from the end of one turn to the next
_FULL_TURN_NS: Final = 5_000_000  # after a turn with _MANY connections: the next has even more
_MANY: Final = 64


class HubLoop:
    """``peers``: connections with an accepted hello; ``gone``: when the last pong of earlier ones was acknowledged.

    Other threads may look these up, take ``events``, read ``refusals``, and call the methods of the first part.
    """

    def __init__(
        self, sockets: list[socket.socket], identity: ServerIdentity, tokens: Tokens, clock: Clock, fence: int,
        limits: HubLimits, is_fresh: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._is_fresh = is_fresh
        self._listeners = {each.fileno(): each for each in sockets}
        self._tokens, self._clock = tokens, clock
        self._fence, self._limits = fence, limits
        self.events, self.refusals = PolledEvents(limits), Refusals()
        self.greeting = Greeting(tokens, fence, limits, self.wake)
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._ungreeted = Ungreeted(limits.ungreeted, limits.ungreeted_of_address, limits.grace_ns)
        self._acceptor = Acceptor(identity, self._ungreeted, self.refusals, clock, limits)
        self._lingering: dict[int, Connection] = {}
        self._vouched: dict[int, tuple[Connection, bytes]] = {}  # hellos of tokens that others know
        self._names: dict[tuple[str, str, str], Connection] = {}
        self.peers: dict[int, Connection] = {}
        self.gone: OrderedDict[int, int] = OrderedDict()
        self._pings = PingTimes(limits.every_ns, clock.now_ns())
        self._orders: deque[tuple[int, bytes]] = deque()
        self._buffer = read_buffer()
        self._next_peer = 1
        self._accepting = True
        self._stopping = False
        self._turn_ns, self._pause_ns = 0, _TURN_NS
        self.failed: BaseException | None = None
        self._bell = HubBell()
        self._poller = select.epoll()
        self._poller.register(self._bell.fd, select.EPOLLIN)
        for fd in self._listeners:
            self._poller.register(fd, select.EPOLLIN)

    # called by the control loop

    def order(self, peer: int, data: bytes) -> None:
        self._orders.append((peer, data))
        self.wake()

    def wake(self) -> None:
        self._bell.wake()

    def stop(self) -> None:
        self._stopping = True
        self._bell.ring()

    # the thread

    def run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self.failed = error
            self.events.put(Left(0, "the hub's thread has failed", on_purpose=False))
            self.events.ring()
            raise
        finally:
            self._end()

    def _turn(self) -> None:
        # under load many connections are served in one turn: its own cost, and a wake of the control loop, count once
        if (early_ns := self._turn_ns + self._pause_ns - boottime_ns()) > 0:
            time.sleep(early_ns / 1e9)
        ready = self._poller.poll(self._wait_s(), _EVENTS)
        self._pause_ns = _TURN_NS if len(ready) < _MANY else _FULL_TURN_NS
        for fd, mask in ready:
            if (connection := self._connections.get(fd)) is not None:
                if mask == _READABLE and connection.stage is _OPEN and not connection.paused:
                    try:  # the usual case, without a call more than it needs
                        self._frames(connection, connection.stream.taken(self._buffer))
                    except Exception as error:
                        self._wrong(connection, error)
                else:
                    self._guarded(connection, self._serve, mask)
            elif fd in self._listeners:
                self._accept(self._listeners[fd])
            elif fd == self._bell.fd:
                self._bell.clear()
                self._look_at_vouched()
        self._turn_ns = boottime_ns()
        self._take_orders()
        for connection in self.events.polled():
            if connection.paused and self._connections.get(connection.fd) is connection:
                connection.paused = False
                self._watch(connection)
        self._keep_time()
        self.events.ring()

    def _wait_s(self) -> float:
        now_ns = self._clock.now_ns()
        times = [self._pings.next_ns(), self._ungreeted.next_ns(now_ns)]
        if self._lingering:
            times.append(next(iter(self._lingering.values())).deadline_ns)
        if self._acceptor.after_ns > now_ns:
            times.append(self._acceptor.after_ns)
        due = [t for t in times if t is not None]
        return max(0.0, (min(due) - now_ns) / 1e9) + 0.001 if due else -1

    def _serve(self, connection: Connection, mask: int) -> None:
        if connection.paused and mask & _BROKEN:
            raise StreamLost("the connection ended")
        if mask & _OUT and connection.stream.ready and connection.stage is not ConnectionStage.LINGER:
            self._flush(connection)
        if mask & ~_OUT or not connection.stream.ready:
            self._read(connection)

    def _guarded(self, connection: Connection, act: Callable[[Connection, T], None], with_: T) -> None:
        """Act on one connection: what is wrong with it ends that one alone."""
        try:
            act(connection, with_)
        except Exception as error:
            self._wrong(connection, error)

    def _wrong(self, connection: Connection, error: Exception) -> None:
        """One connection must not end the others, whatever it sent."""
        if isinstance(error, StreamLost):
            self._lost(connection, str(error))
        else:
            self._refuse(connection, *refused_for(error))

    def _read(self, connection: Connection) -> None:
        stream = connection.stream
        if not stream.ready:
            waits = stream.handshake()
            if waits:
                self._watch(connection, room=waits == 2)
                return
            self._watch(connection)
            connection.stage = ConnectionStage.HELLO
        if connection.paused:
            return
        data = stream.receive(self._buffer)
        if data is None:
            return
        if not data:
            raise StreamLost("the connection ended")
        if connection.stage is ConnectionStage.OPEN:
            self._frames(connection, stream.frames(data))
        elif connection.stage is ConnectionStage.HELLO:
            payload = stream.frame(data)
            if payload is not None:
                self._hello(connection, payload)
        elif connection.stage is ConnectionStage.VOUCH:
            raise wire.Malformed("a frame before the welcome")

    def _look_at_vouched(self) -> None:
        """Hellos whose tokens are known meanwhile."""
        waiting, self._vouched = self._vouched, {}
        for fd, (connection, payload) in waiting.items():
            if self._connections.get(fd) is connection and connection.stage is ConnectionStage.VOUCH:
                self._guarded(connection, self._hello, payload)

    def _hello(self, connection: Connection, payload: bytes) -> None:
        try:
            greeted = self.greeting.taken(payload, self._next_peer, connection.address)
        except NotKnownYet:
            connection.stage = ConnectionStage.VOUCH
            self._vouched[connection.fd] = (connection, payload)
            return
        now_ns = self._clock.now_ns()
        if len(self.peers) >= self._limits.peers:
            why = f"the hub has {self._limits.peers} clients already"
            raise HelloRefused("slots", why, "try again later")
        if not self._is_fresh():
            raise HelloRefused("stale", "the controller could not renew its lease of the store", "dial again")
        older = self._names.get(greeted.key)
        if older is not None:
            self._refuse(older, "replaced", "a newer connection took its place", "end the other one")
        self._ungreeted.discard(connection)
        self._next_peer += 1
        connection.key, connection.newer = greeted.key, greeted.newer
        connection.opened(greeted.peer, now_ns)
        self._names[greeted.key] = connection
        self.peers[greeted.peer.id] = connection
        self._pings.add(connection)
        self.events.put(Joined(greeted.peer))
        # a ping at once: its exchange is better than that of the hello, and a stored token is confirmed by its pong
        self._send(connection, frames.encoded(greeted.welcome) + connection.ping(self._fence, now_ns))
        self._frames(connection, connection.stream.frames(b""))

    def _frames(self, connection: Connection, payloads: Sequence[bytes]) -> None:
        peer = connection.peer
        if peer is None or connection.stage is not _OPEN:
            return
        for payload in payloads:
            frame = frames.from_client(payload, newer=connection.newer)
            # what comes most is first, and compared as a type: a union, or a class of a metaclass, takes longer to look up
            if type(frame) is frames.Marks:
                if peer.kind != "box":
                    raise wire.Malformed("only a box sends marks")
                self._pass_on(connection, peer.id, frame, len(payload))
            elif type(frame) is frames.Pong:
                if not connection.pong_n and peer.kind == "agent":
                    self._tokens.joined(peer.node)
                connection.pong(frame.n, frame.ping, frame.now, self._clock.now_ns())
            elif frame is not None and self._ends(connection, peer, frame, len(payload)):
                return

    def _ends(self, connection: Connection, peer: Peer, frame: frames.FromClient, size: int) -> bool:
        """Take a frame that does not come often; whether it ended the connection."""
        if isinstance(frame, frames.Fetch | frames.Ask | frames.Forget) and peer.kind != "reader":
            raise wire.Malformed("only a reader fetches, forgets, or orders a profile")
        if isinstance(frame, frames.Passed):
            self._pass_on(connection, peer.id, frame, size)
            return False
        if not isinstance(frame, frames.Bye):
            raise wire.Malformed("a second hello")
        if peer.kind == "agent":
            self._tokens.forget(peer.node)
        self._close(connection, frame.why or "it left", on_purpose=True)
        return True

    def _pass_on(self, connection: Connection, peer: int, frame: frames.Passed, size: int) -> None:
        if self.events.received(connection, Received(peer, frame), size) and not connection.paused:
            connection.paused = True
            self._watch(connection)

    def _accept(self, listener: socket.socket) -> None:
        for connection in self._acceptor.accept(listener, self._make_room):
            self._connections[connection.fd] = connection
            self._poller.register(connection.fd, _IN)

    def _make_room(self, oldest: Connection) -> None:
        self._refuse(oldest, "slots", "others wait, and it sent no hello", "try again later")

    def _take_orders(self) -> None:
        for _ in range(len(self._orders)):
            peer, data = self._orders.popleft()
            connection = self.peers.get(peer)
            if connection is None:
                continue
            if connection.stream.unsent + len(data) > self._limits.unread_bytes:
                self._refuse(connection, "unread", "it does not read what it is sent", "dial again")
            else:
                self._try_send(connection, data)

    def _keep_time(self) -> None:
        now_ns = self._clock.now_ns()
        # a ping would extend leases of boxes that the next controller counts from its own start
        is_fresh = self._is_fresh()
        for connection in self._pings.due(now_ns):
            if now_ns - connection.pong_ns > self._limits.silent_ns:
                self._refuse(connection, "silent", "it answers no ping", "dial again")
            elif is_fresh and not connection.stream.waits:  # who does not read gets no acknowledgement either
                self._try_send(connection, connection.ping(self._fence, now_ns))
        for connection in self._ungreeted.late(now_ns):
            self._refuse(connection, "late", f"no {connection.stage.value} in time", "dial again")
        for connection in list(self._lingering.values()):
            if connection.deadline_ns > now_ns:
                break
            self._drop(connection)
        accepting = self._acceptor.may_accept(now_ns)
        if accepting != self._accepting:
            self._accepting = accepting
            for fd in self._listeners:
                self._poller.modify(fd, select.EPOLLIN if accepting else 0)

    def _try_send(self, connection: Connection, data: bytes) -> None:
        try:
            if not connection.stream.send(data):
                self._watch(connection, room=True)
        except StreamLost as lost:
            self._lost(connection, str(lost))

    def _send(self, connection: Connection, data: bytes) -> None:
        if not connection.stream.send(data):
            self._watch(connection, room=True)

    def _flush(self, connection: Connection) -> None:
        if connection.stream.flush():
            self._watch(connection)

    def _watch(self, connection: Connection, *, room: bool | None = None) -> None:
        """What the poller looks for; ``room``: also for room to write (None: while something is not sent)."""
        if connection.fd not in self._connections:
            return
        writing = bool(connection.stream.unsent) if room is None else room
        connection.writing = writing
        reading = 0 if connection.paused else _IN
        self._poller.modify(connection.fd, reading | (_OUT if writing else 0))

    def _lost(self, connection: Connection, why: str) -> None:
        if connection.stage in (ConnectionStage.TLS, ConnectionStage.HELLO):
            because: Because = "tls" if connection.stage is ConnectionStage.TLS else "malformed"
            self.refusals.add(self._clock.now_ns(), because, connection.address, why)
        self._close(connection, why, on_purpose=False)

    def _refuse(self, connection: Connection, because: Because, why: str, remedy: str) -> None:
        """Count it, and close the connection, with the reason if it can still be sent."""
        now_ns = self._clock.now_ns()
        node = connection.peer.node if connection.peer else ""
        self.refusals.add(now_ns, because, connection.address, why, node)
        if connection.stage is ConnectionStage.LINGER:
            self._drop(connection)
            return
        self._forget(connection, why, on_purpose=False)
        if connection.stage is ConnectionStage.TLS or because in ("unread", "silent"):
            self._drop(connection)
            return
        try:
            connection.stream.send(frames.encoded(frames.Refused(why[:1000], remedy)))
            connection.stream.finish()
        except (StreamLost, ValueError, UnicodeError):
            self._drop(connection)
            return
        if len(self._lingering) >= self._limits.lingering:
            self._drop(next(iter(self._lingering.values())))
        # closing with unread bytes would reset the connection, and the reason with it
        connection.stage, connection.deadline_ns = ConnectionStage.LINGER, now_ns + self._limits.linger_ns
        connection.paused = False
        self._lingering[connection.fd] = connection
        self._watch(connection, room=False)

    def _close(self, connection: Connection, why: str, *, on_purpose: bool) -> None:
        self._forget(connection, why, on_purpose=on_purpose)
        self._drop(connection)

    def _forget(self, connection: Connection, why: str, *, on_purpose: bool) -> None:
        """It is no peer any more."""
        self._ungreeted.discard(connection)
        self._pings.discard(connection)
        peer = connection.peer
        if peer is None or self.peers.pop(peer.id, None) is None:
            return
        if self._names.get(connection.key) is connection:
            del self._names[connection.key]
        self.gone[peer.id] = connection.acknowledged_ns
        if len(self.gone) > _GONE:
            self.gone.popitem(last=False)
        self.events.put(Left(peer.id, why, on_purpose))

    def _drop(self, connection: Connection) -> None:
        self._lingering.pop(connection.fd, None)
        if self._connections.pop(connection.fd, None) is not None:
            with suppress(OSError, ValueError):
                self._poller.unregister(connection.fd)
            connection.stream.close()

    def _end(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, "the hub ended", on_purpose=False)
        for listener in self._listeners.values():
            listener.close()
        self._poller.close()
        self._bell.close()

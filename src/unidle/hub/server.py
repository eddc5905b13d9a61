"""The hub: one thread with all sockets. The control loop calls :class:`HubServer` from its own thread, and never waits."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unidle import private
from unidle.clock import Clock
from unidle.errors import CannotRun
from unidle.hub import frames
from unidle.hub.authority import OwnIdentity, ServerIdentity, SiteIdentity
from unidle.hub.limits import HubLimits
from unidle.hub.listening import listening, names_of, raise_descriptor_limit
from unidle.hub.loop import HubLoop
from unidle.hub.place import FOLDER
from unidle.hub.protocol import ClockOffset, Joined, Left, Received
from unidle.hub.refusals import Refusals
from unidle.hub.tokens import Tokens
from unidle.hub.vouching import Voucher


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class SiteFiles:
    """The site's certificate and key in PEM, and the certificates that clients verify it with (None: those of their system)."""

    certificate: str
    key: str
    authority: str | None = None


class HubServer:
    """A ``unidle.hub.protocol.Hub`` over TLS. ``fence``: the store's token of this controller.

    It takes the sockets, ``identity`` and ``tokens`` over, and closes them. ``refusals`` has what it refused,
    ``addresses`` where it listens, ``descriptors`` how many files this process may have open.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        identity: ServerIdentity,
        tokens: Tokens,
        clock: Clock,
        fence: int,
        limits: HubLimits | None = None,
        is_fresh: Callable[[], bool] = _always,
    ) -> None:
        limits = limits or HubLimits()
        self.descriptors = raise_descriptor_limit(limits.peers)
        self.addresses: list[tuple[str, int]] = [each.getsockname()[:2] for each in sockets]
        self.authority = identity.authority
        self._identity, self._tokens = identity, tokens
        self._is_closed = False
        self._loop = HubLoop(sockets, identity, tokens, clock, fence, limits, is_fresh)
        self.refusals: Refusals = self._loop.refusals
        self._thread = threading.Thread(target=self._loop.run, name="unidle-hub", daemon=True)
        self._thread.start()

    def poll(self) -> list[Joined | Left | Received]:
        """As of the protocol. Errors: RuntimeError where the thread failed, which is a fault of this program."""
        events = self._loop.events
        found = events.take()
        if events.waiting:
            self._loop.wake()
        if not found and self._loop.failed is not None:
            raise RuntimeError("the hub's thread has failed") from self._loop.failed
        return found

    def send(self, peer: int, frame: frames.Command) -> None:
        self._loop.order(peer, frames.encoded(frame))

    def offset(self, peer: int) -> ClockOffset | None:
        connection = self._loop.peers.get(peer)
        return connection.clock.value if connection else None

    def acknowledged_ns(self, peer: int) -> int:
        connection = self._loop.peers.get(peer)
        return connection.acknowledged_ns if connection else self._loop.gone.get(peer, 0)

    def box_token(self, node: str, job: str) -> str:
        return self._tokens.box(node, job)

    def forget(self, node: str) -> bool:
        return self._tokens.forget(node)

    def dialled_as(self, host: str) -> str:
        """By which name clients reach a hub that listens on ``host``: another one where the site's certificate does not have that."""
        site = self._identity.site
        return site.names[0] if site is not None and site.names and host not in site.names else host

    def tls(self) -> ssl.SSLContext:
        """The hub's certificate as it is now, for another server of this process."""
        return self._identity.context(time.time())

    def vouched_by(self, voucher: Voucher) -> None:
        """Tokens that are none of this hub are good where ``voucher`` has them. It is called in the hub's thread."""
        self._loop.greeting.voucher = voucher

    @property
    def wake_fd(self) -> int:
        return self._loop.events.fd

    def close(self) -> None:
        """End all connections and the thread. What was not polled can still be. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.stop()
        self._thread.join()
        self._loop.events.close()
        self._tokens.close()
        self._identity.close()


def open_hub(
    listen: str,
    state: str,
    clock: Clock,
    fence: int,
    *,
    limits: HubLimits | None = None,
    site: SiteFiles | None = None,
    names: Sequence[str] = (),
    is_fresh: Callable[[], bool] = _always,
) -> HubServer:
    """A hub that listens on ``HOST:PORT``, with its secret, authority and join file in the directory ``state``/hub.

    ``names``: more names of this host for its own certificate; ``is_fresh``, called in the hub's thread: whether the store's
    lease surely holds, without which no client is welcomed and no pong acknowledged. Errors: BadInput, CannotRun (a port that is taken,
    ``cryptography`` missing), StoreError (damaged files), ``private.NotPrivate`` (files of another user), OSError.
    """
    where = os.path.join(state, FOLDER)
    folder = private.open_folder(where, create=True, private=True)
    sockets: list[socket.socket] = []
    tokens: Tokens | None = None
    identity: ServerIdentity | None = None
    try:
        sockets = listening(listen)
        tokens = Tokens(folder, where)
        own_names = [*names_of(sockets), *names]
        identity = OwnIdentity(folder, where, own_names, time.time()) if site is None else _identity_of(site)
        tokens.write_join(identity.authority)
        _write_reader(tokens, identity, [each.getsockname()[:2] for each in sockets])
        return HubServer(sockets, identity, tokens, clock, fence, limits, is_fresh)
    except BaseException as error:
        for each in (*sockets, tokens, identity):
            if each is not None:
                each.close()
        if isinstance(error, OSError) and not isinstance(error, private.NotPrivate):
            raise CannotRun(f"the hub cannot start: {error.strerror or error}", value=where) from None
        raise
    finally:
        os.close(folder)


def _write_reader(tokens: Tokens, identity: ServerIdentity, addresses: list[tuple[str, int]]) -> None:
    """Now, and whenever the site's certificate is replaced."""

    def write() -> None:
        tokens.write_reader(identity.authority, addresses, identity.site)

    write()
    identity.follow(write)


def _identity_of(site: SiteFiles) -> SiteIdentity:
    return SiteIdentity(site.certificate, site.key, site.authority)

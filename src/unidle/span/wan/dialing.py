"""Threads that open flows: connecting and greeting block, so they are kept out of the loop."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from unidle.span.wan import handshake
from unidle.span.wan.api import Refused, Settings
from unidle.span.wan.handshake import Hello, Identity
from unidle.span.wan.sockets import after_connect, before_connect

# By X509_V_ERR of OpenSSL.
_REMEDIES: Final = {
    9: "check the clocks of both sides",  # not yet valid
    10: "renew the certificate of that side",
    62: "give it a certificate with the name by which it is reached",
    64: "give it a certificate with the address by which it is reached",
}


class Dialer(threading.Thread):
    """Opens one flow: retries until it is open, refused or no longer needed."""

    def __init__(
        self,
        me: Identity,
        peer: str,
        address: tuple[str, int],
        flow: int,
        settings: Settings,
        tls: tuple[ssl.SSLContext, str] | None,
        done: Callable[[Dialer, socket.socket | None, Hello | Refused | None], None],
    ) -> None:
        super().__init__(name=f"wan-dial-{peer}-{flow}", daemon=True)
        self._me, self._peer, self._address, self._flow = me, peer, address, flow
        self._settings, self._tls, self._done = settings, tls, done
        self._unwanted = threading.Event()
        self._link: socket.socket | None = None

    def stop(self) -> None:
        """Give up now, also in the middle of a connect."""
        self._unwanted.set()
        if (link := self._link) is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        pause_s = self._settings.backoff_s
        while not self._unwanted.is_set():
            try:
                link, hello = self._open()
            except Refused as refused:
                self._done(self, None, refused)
                return
            except OSError as error:
                if isinstance(error, ssl.SSLError) and (why := _certificate_problem(error)):
                    who = f"tls: {self._peer} at {self._address[0]}:{self._address[1]}"
                    self._done(self, None, Refused(who + why))
                    return
                self._unwanted.wait(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(pause_s * 2, self._settings.backoff_most_s)
            else:
                self._done(self, link, hello)
                return
        self._done(self, None, None)

    def _open(self) -> tuple[socket.socket, Hello]:
        link = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET)
        self._link = link
        try:
            before_connect(link, self._settings)
            link.settimeout(self._settings.connect_s)
            if self._unwanted.is_set():
                raise ConnectionAbortedError
            link.connect(self._address)
            if self._tls is not None:
                context, name = self._tls
                link = self._link = context.wrap_socket(link, server_hostname=name or None)
            hello = handshake.ask(link, self._me, self._peer, self._flow, self._settings.flows)
            after_connect(link, self._settings)
        except BaseException:
            link.close()
            raise
        finally:
            self._link = None
        return link, hello


def _certificate_problem(error: ssl.SSLError) -> str:
    """What is wrong with which certificate; empty where it is something else, which may pass."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _REMEDIES.get(error.verify_code, "give both sides certificates of one authority")
        return f": {error.verify_message}; {remedy}"
    words = (error.reason or "").lower().replace("_", " ")
    if " alert " in words and any(part in words for part in ("certificate", "unknown ca")):
        return f" refused this side's certificate: {words.partition(' alert ')[2]}; renew it, from the authority of both sides"
    return ""


class Greeter(threading.Thread):
    """Identifies the peer of a new connection, and accepts or refuses it. ``host``: where the connection comes from."""

    def __init__(
        self,
        link: socket.socket,
        host: str,
        me: Identity,
        settings: Settings,
        tls: ssl.SSLContext | None,
        admit: Callable[[Hello], str],
        done: Callable[[Greeter, socket.socket | None, Hello | Refused | None], None],
    ) -> None:
        super().__init__(name="wan-greet", daemon=True)
        self._link, self._me, self._settings, self._tls = link, me, settings, tls
        self._admit, self._done = admit, done
        self.host, self.began_s, self.stopped = host, time.monotonic(), False

    def stop(self) -> None:
        """Give up now."""
        self.stopped = True
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        try:
            hello = self._greet()
        except Refused as refused:
            self._link.close()
            self._done(self, None, refused)
        except ssl.SSLError as error:
            self._link.close()
            self._done(self, None, Refused(f"tls: a peer was refused: {error.reason or error}"))
        except OSError:
            self._link.close()
            self._done(self, None, None)
        except Exception as error:  # whatever a stranger sends, this thread is done with it
            self._link.close()
            self._done(self, None, Refused(f"{self.host}: {type(error).__name__} in its greeting: {error}"))
        else:
            self._done(self, self._link, hello)

    def _greet(self) -> Hello:
        self._link.settimeout(self._settings.connect_s)
        if self._tls is not None:
            self._link = self._tls.wrap_socket(self._link, server_side=True, do_handshake_on_connect=False)
            self._link.do_handshake()
        hello = handshake.answer(self._link, self._me)
        why = self._admit(hello)
        handshake.welcome(self._link, why)
        if why:
            raise Refused(f"{hello.peer!r} was refused: {why}")
        after_connect(self._link, self._settings)
        return hello

"""A rank's connection to its node's holder: starts the holder, announces copies, receives their results."""

from __future__ import annotations

import collections
import os
import socket
import threading

from unidle.checkpoint.holder import wire
from unidle.checkpoint.holder.wire import Address, Gone, Message


class HolderClient:
    """One connection, and a thread that listens to it. If the holder dies, another one is started."""

    def __init__(self, storage: str, hold: str, node: str, linger_s: float) -> None:
        self.storage, self.hold, self._node, self._linger_s = storage, hold, node, linger_s
        self.address: Address | None = None
        self._host = wire.LOOPBACK
        self._link: socket.socket | None = None
        self._hello: Message = {}
        self._news: collections.deque[Message] = collections.deque()
        self._starting: threading.Thread | None = None
        self._closed = False
        self._sending = threading.Lock()

    @property
    def alive(self) -> bool:
        return self._link is not None

    def start(self, host: str = "") -> Address:
        """The holder of this node; it is started if necessary. Raises :class:`Gone`, OSError.

        ``host``: where other hosts reach it; as the last time by default.
        """
        self._host = host or self._host
        self.address = wire.start(self.storage, self.hold, self._node, self._linger_s, self._host)
        return self.address

    def hello(self, message: Message) -> None:
        """Register this rank. Raises :class:`Gone` with the reason if the holder refuses it."""
        assert self.address is not None
        self._hello = message
        link = wire.connect(self.address.on_this_host())
        link.settimeout(60)
        try:
            answer, _ = wire.ask(link, {"do": "hello", "pid": os.getpid()} | message)
            if not answer.get("ok"):
                raise Gone(str(answer.get("why")))
        except Gone:
            link.close()
            raise
        link.settimeout(None)
        self._link = link
        threading.Thread(target=self._listen, args=(link,), daemon=True, name="unidle-holder").start()

    def tell(self, message: Message) -> bool:
        """Send a message. False without a holder."""
        link = self._link
        if link is None:
            return False
        try:
            with self._sending:  # copies from a GPU are sent by a thread of their own
                wire.send(link, message)
        except Gone:
            self._lost(link)
            return False
        return True

    def news(self, start: bool = True) -> list[Message]:
        """Messages of the holder since the last call; ``{"event": "restarted"}`` after it was started again."""
        found = []
        while self._news:
            found.append(self._news.popleft())
        if (
            start
            and self._link is None
            and not self._closed
            and not (self._starting and self._starting.is_alive())
        ):
            self._starting = threading.Thread(target=self._again, daemon=True)
            self._starting.start()
        return found

    def close(self) -> None:
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            link.close()

    def _again(self) -> None:
        try:
            self.start()
            self.hello(self._hello)
            self._news.append({"event": "restarted"})
        except (Gone, OSError) as error:
            self._news.append({"event": "holder_gone", "why": str(error)})

    def _listen(self, link: socket.socket) -> None:
        try:
            while True:
                message, _ = wire.receive(link)
                self._news.append(message)
        except Gone:
            self._lost(link)

    def _lost(self, link: socket.socket) -> None:
        if self._link is link:
            self._link = None

"""A relay in front of a server that notes what passes: reads and writes per connection, as probes of sockets would.

What a client sends is a read of the server, what the server sends a write of it; times are the kernel's monotonic ones.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time

from unidle.scope.model import Span

WRITES = re.compile(rb"(?<=\r\n\r\n)|(?<=\n\n\r\n)")  # behind headers, and behind each event of a stream


class Relay:
    """Listens on ``port`` and passes all on to ``target``; :attr:`spans` fill up meanwhile."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.spans: list[Span] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):  # the other side ended it already
                one.shutdown(socket.SHUT_RDWR)  # wakes whoever reads from it; closing alone does not
        for thread in list(self._threads):
            thread.join(60)
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [client, server]
            name = f"127.0.0.1:{self.target}>127.0.0.1:{address[1]}"
            for kind, source, sink in (("recv", client, server), ("send", server, client)):
                thread = threading.Thread(target=self._pass, args=(name, kind, source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass(self, name: str, kind: str, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                at = time.monotonic_ns()
                # Under load the kernel hands several writes of the server over at once.
                for part in filter(None, WRITES.split(data)) if kind == "send" else (data,):
                    self.spans.append(Span(1, 1, name, kind, at, at, len(part)))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

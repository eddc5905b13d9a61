"""A real TCP proxy that damages, cuts or stalls what it carries."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

Spoil = Callable[[int, bytes], bytes]  # how many bytes went before, and the next ones


class Relay:
    """Connections to :attr:`address` go on to ``target``; what goes there passes ``spoil`` first."""

    def __init__(self, target: tuple[str, int], spoil: Spoil = lambda _, data: data) -> None:
        self._target, self.spoil = target, spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.passed = threading.Event()
        self.passed.set()
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections, in the middle of whatever they carry."""
        with self._lock:
            for link in self._open:
                with contextlib.suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.passed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                for link in (near, far):
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open |= {near, far}
                    self.connections += 1
                left = [2]
                for source, sink, spoils in ((near, far, True), (far, near, False)):
                    thread = threading.Thread(
                        target=self._carry, args=(source, sink, spoils, left), daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, spoils: bool, left: list[int]) -> None:
        count = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.passed.wait()
                sink.sendall(self.spoil(count, data) if spoils else data)
                count += len(data)
        for link in (source, sink):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        with self._lock:
            left[0] -= 1
            if not left[0]:
                self._open -= {source, sink}
                source.close()
                sink.close()

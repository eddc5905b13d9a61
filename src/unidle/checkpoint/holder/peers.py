"""A rank's copy on another node: one holder sends it, the other keeps it."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from unidle.checkpoint.holder import hold_paths, memory_copies, wire
from unidle.checkpoint.holder.memory_copies import PAGE, Label
from unidle.checkpoint.holder.wire import Address, Gone, Message
from unidle.checkpoint.layout import CHUNK_BYTES

_AGAIN_S: Final = 5.0
_PATIENCE_S: Final = 60.0


class Sender:
    """Sends the copies of one rank to the holder of its peer, in a thread, one after the other.

    ``tell(slot, problem)`` is called once for each: the problem is empty when the peer has it.
    """

    def __init__(self, peer: Address, storage: str, hold: str, tell: Callable[[int, str], None]) -> None:
        self._peer, self._storage, self._hold, self._tell = peer, storage, hold, tell
        self._todo: queue.SimpleQueue[tuple[int, str, Label, int | None] | None] = queue.SimpleQueue()
        self._link: socket.socket | None = None
        self._again_s = 0.0
        threading.Thread(target=self._run, daemon=True, name="sender").start()

    def add(self, slot: int, name: str, label: Label, through: int | None) -> None:
        self._todo.put((slot, name, label, through))

    def close(self) -> None:
        self._todo.put(None)

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            slot, name, label, through = item
            try:
                self._send(name, label, through)
                problem = ""
            except (Gone, OSError) as error:
                problem = f"peer {self._peer.host}:{self._peer.port} does not accept the copy: {error}"
                self._drop()
            self._tell(slot, problem)
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._again_s = time.monotonic() + _AGAIN_S

    def _send(self, name: str, label: Label, through: int | None) -> None:
        if self._link is None:
            if time.monotonic() < self._again_s:
                raise Gone("it did not answer a moment ago")
            self._link = wire.connect(wire.newest(self._storage, self._peer))
            self._link.settimeout(_PATIENCE_S)
        wire.send(self._link, {"do": "put", "label": asdict(label), "through": through})
        crcs = []
        with hold_paths.held(self._hold) as hold, os.fdopen(hold_paths.open_copy(name, hold), "rb") as file:
            for at in range(0, label.size_bytes, CHUNK_BYTES):
                data = os.pread(file.fileno(), min(CHUNK_BYTES, label.size_bytes - at), PAGE + at)
                crcs.append(zlib.crc32(data))
                self._link.sendall(data)
        wire.send(self._link, {"crcs": crcs})
        answer, _ = wire.receive(self._link)
        if not answer.get("ok"):
            raise Gone(str(answer.get("why", "refused")))


class PeerCopyStore:
    """The copies that peers sent to this holder: the last two of each rank, in files that are used again."""

    def __init__(self, hold: str) -> None:
        self._hold = hold
        self._lock = threading.Lock()
        self._spare: list[str] = []
        self._number = 0

    def take(self, link: socket.socket, message: Message) -> None:
        """Receive one copy after its ``put`` message, and answer. Raises :class:`Gone`, OSError."""
        label = memory_copies.label_of(message["label"])
        with hold_paths.held(self._hold) as hold:
            name = self._room(hold)
            try:
                if not self._receive(link, name, hold, label):
                    wire.send(link, {"ok": False, "why": "checksums differ after the transfer"})
                    return
                final = memory_copies.peer_name(label.rank, label.session, label.step)
                os.rename(name, final, src_dir_fd=hold, dst_dir_fd=hold)
                name = ""
                wire.send(link, {"ok": True})
            finally:
                if name:
                    self._spare_it(name, hold)
        self.forget(label, message.get("through"))

    def _receive(self, link: socket.socket, name: str, hold: int, label: Label) -> bool:
        """Fill a file with what comes; False where its checksums are not those of the sender."""
        with os.fdopen(hold_paths.open_copy(name, hold, os.O_RDWR), "r+b") as file:
            file.write(memory_copies.page_of(None))
            file.flush()
            file.truncate(PAGE + label.size_bytes)
            with mmap.mmap(file.fileno(), 0) as memory:
                crcs = _fill(link, memory, label.size_bytes)
                told, _ = wire.receive(link)
                if told.get("crcs") != crcs:
                    return False
                memory[:PAGE] = memory_copies.page_of(label)
        return True

    def forget(self, newest: Label, through: int | None) -> None:
        """Let go of copies of this rank that are older than the last step that every rank has."""
        if through is None:
            return
        with contextlib.suppress(OSError), hold_paths.held(self._hold) as hold:
            for name, label in memory_copies.copies(self._hold).items():
                same = label.rank == newest.rank and label.session == newest.session
                if name.startswith("peer-") and same and label.step < through:
                    self._spare_it(name, hold)

    def _room(self, hold: int) -> str:
        with self._lock:
            if self._spare:
                return self._spare.pop()
            self._number += 1
            name = f"spare-{os.getpid()}-{self._number}"
        os.close(hold_paths.open_copy(name, hold, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return name

    def _spare_it(self, name: str, hold: int) -> None:
        """Keep a file's pages for the next copy: fresh ones cost a fault each."""
        with self._lock:
            self._number += 1
            spare = f"spare-{os.getpid()}-{self._number}"
            with contextlib.suppress(OSError):
                os.rename(name, spare, src_dir_fd=hold, dst_dir_fd=hold)
                self._spare.append(spare)


def _fill(link: socket.socket, memory: mmap.mmap, size_bytes: int) -> list[int]:
    crcs = []
    with memoryview(memory) as view:
        for at in range(PAGE, PAGE + size_bytes, CHUNK_BYTES):
            with view[at : min(at + CHUNK_BYTES, PAGE + size_bytes)] as part:
                wire.receive_into(link, part)
                crcs.append(zlib.crc32(part))
    return crcs

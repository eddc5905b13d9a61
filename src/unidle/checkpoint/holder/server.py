"""The holder itself: who may connect, what they ask for, and when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from unidle import private
from unidle.atomic import replaced
from unidle.checkpoint.holder import attempts, hold_paths, memory_copies, wire
from unidle.checkpoint.holder.attempts import SavingAttempt
from unidle.checkpoint.holder.listener import Listener, is_loopback
from unidle.checkpoint.holder.memory_copies import PAGE
from unidle.checkpoint.holder.peers import PeerCopyStore, Sender
from unidle.checkpoint.holder.saves import SaveOrder, Saves
from unidle.checkpoint.holder.wire import Address, Gone, Message
from unidle.checkpoint.holder.writer_lock import OLDER_S, TAKE_OVER_S, WriterLock
from unidle.checkpoint.layout import CHUNK_BYTES

_FAREWELL_S: Final = 2.0


@dataclass(slots=True)
class RankConnection:
    """A rank that is connected."""

    link: socket.socket
    rank: int
    session: str
    attempt: SavingAttempt
    pid: int
    lead: Address | None
    sender: Sender | None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, message: Message) -> None:
        with contextlib.suppress(Gone), self.lock:
            wire.send(self.link, message)


class MemoryHolder:
    """Serves one node of one checkpoint directory, until no client needs it."""

    def __init__(self, storage: str, hold: str, node: str, host: str, linger_s: float) -> None:
        self.storage, self.hold, self.node, self.linger_s = storage, hold, node, linger_s
        token, name = secrets.token_hex(32), os.path.basename(hold)
        self._doors = Listener(token, name, self._connection)
        here = self._doors.open(wire.LOOPBACK)
        self.address = Address(wire.LOOPBACK, here, token, name, here)
        self._publishing = threading.Lock()
        self._listen_at(host)
        self._lock = threading.Condition()
        self._clients: dict[int, RankConnection] = {}
        self._joining = 0  # ranks whose greeting is not answered yet
        self._finished = self._ending = False
        self._idle_since_s = time.monotonic()
        self._writing = WriterLock(storage)
        self._beginning = threading.Lock()
        self._begun: SavingAttempt | None = None  # the last one whose rank 0 is or was here
        self._kept = PeerCopyStore(hold)
        self._saves = Saves(storage, hold, self._tell_lead, self._refusal)

    def publish(self) -> None:
        """Say where this holder is: to this node in memory, to others in the checkpoint directory."""
        text = json.dumps(self.address.to_json() | {"pid": os.getpid(), "node": self.node}).encode()
        with hold_paths.held(self.hold) as hold:
            _publish(wire.ADDRESS, hold, text)
        # else other nodes are not found after a restart, and storage serves
        with (
            contextlib.suppress(OSError),
            hold_paths.inner(self.storage, wire.HOLDERS, create=True) as holders,
        ):
            _publish(self._public_name, holders, text)

    @property
    def _public_name(self) -> str:
        return os.path.basename(self.hold) + ".json"

    def _listen_at(self, host: str) -> bool:
        """Listen for other hosts too, where ``host`` is not a loopback address. True if the address changed."""
        with self._publishing:
            if not host or is_loopback(host) or not is_loopback(self.address.host):
                return False
            self.address = replace(self.address, host=host, port=self._doors.open(host))
            return True

    def serve(self) -> None:
        """Returns when it is not needed any more; its copies are gone then."""
        while not self._is_over():
            self._doors.accept(0.5)
        self._doors.close()
        with contextlib.suppress(OSError):
            self._clear()

    def _clear(self) -> None:
        """Remove what is this holder's, where no other one has begun in its place."""
        gate = hold_paths.gate(self.hold)
        with hold_paths.held(self.hold) as hold:
            found = json.loads(private.read(wire.ADDRESS, hold, PAGE))
        if found.get("token") == self.address.token:
            with contextlib.suppress(OSError), hold_paths.inner(self.storage, wire.HOLDERS) as holders:
                os.unlink(self._public_name, dir_fd=holders)
            hold_paths.clear(self.hold)
        os.close(gate)

    def finish(self) -> None:
        """No rank will come any more: end once what is on its way to storage is there."""
        with self._lock:
            self._finished, self._idle_since_s = True, 0.0

    def _is_over(self) -> bool:
        now_s = time.monotonic()
        self._saves.give_up_late()
        with self._lock:
            if self._clients or self._joining or self._saves.busy:
                self._idle_since_s = now_s
                self._writing.retry()
                return False
            self._writing.release()
            self._ending = now_s > self._idle_since_s + (_FAREWELL_S if self._finished else self.linger_s)
            return self._ending

    # ---- connections

    def _connection(self, link: socket.socket, local: bool) -> None:
        """Serve one that has proved itself; only ranks of this node may register, and they are ``local``."""
        with link:
            try:
                while True:
                    message, _ = wire.receive(link)
                    if message["do"] == "hello" and not local:
                        raise ValueError("a rank of another node")
                    self._serve_one(link, message)
            except (Gone, OSError, KeyError, TypeError, ValueError, AttributeError, StopIteration):
                return  # what it asked for makes no sense, or it is gone
            finally:
                self._left(link)

    def _serve_one(self, link: socket.socket, message: Message) -> None:
        do = message["do"]
        if do == "coming":
            self._coming(link, str(message.get("host", "")))
        elif do == "hello":
            self._hello(link, message)
        elif do == "copied":
            self._copied(link, message)
        elif do == "put":
            self._kept.take(link, message)
        elif do == "inventory":
            found = memory_copies.copies(self.hold)
            wire.send(link, {"copies": {name: asdict(label) for name, label in found.items()}})
        elif do == "read":
            self._read(link, message)
        elif do in ("shard", "shard_failed"):
            self._saves.hear(message)
            wire.send(link, {"ok": True})
        elif do == "end":
            wire.send(link, {"ok": True})
            self.finish()
        elif do == "bye":
            with self._lock:
                self._finished = True

    def _hello(self, link: socket.socket, message: Message) -> None:
        with self._lock:
            self._joining += 1
        try:
            self._join(link, message)
        finally:
            with self._lock:
                self._joining -= 1

    def _join(self, link: socket.socket, message: Message) -> None:
        rank, session = int(message["rank"]), str(message["session"])
        attempt = attempts.attempt_in(message)
        why = self._wait_for_room(session, attempt) or (self._lead(message, attempt) if rank == 0 else "")
        if why:
            wire.send(link, {"ok": False, "why": why})
            return
        peer = wire.address_from(message["peer"]) if message["peer"] else None
        lead = wire.address_from(message["lead"]) if message["lead"] else None
        client = RankConnection(link, rank, session, attempt, int(message["pid"]), lead, None)
        if peer is not None:
            client.sender = Sender(
                peer,
                self.storage,
                self.hold,
                lambda slot, why: client.tell({"event": "sent", "slot": slot, "why": why}),
            )
        with self._lock:
            self._clients[rank] = client
            self._finished = False
        if rank == 0:
            self._saves.options = message["options"]
            self._saves.sweep()
        with client.lock:
            wire.send(link, {"ok": True})

    def _coming(self, link: socket.socket, host: str) -> None:
        stays = self._stays()
        if stays and self._listen_at(host):
            self.publish()
        wire.send(link, {"ok": stays, "address": self.address.to_json()})

    def _stays(self) -> bool:
        """A rank is about to register: whether this holder is still there for it."""
        with self._lock:
            self._finished, self._idle_since_s = False, time.monotonic()
            return not self._ending

    def _wait_for_room(self, session: str, attempt: SavingAttempt) -> str:
        """Empty once no rank of another session is connected; else who is. Ranks of earlier attempts of the same job go."""
        with self._lock:
            if newer := [each for each in self._others(session) if attempt.is_before(each.attempt)]:
                return f"attempt {newer[0].attempt.number} of this job has begun: attempt {attempt.number} saves no more"
            older = all(each.attempt.is_before(attempt) for each in self._others(session))
            if self._lock.wait_for(lambda: not self._others(session), OLDER_S if older else TAKE_OVER_S):
                return ""
            others = self._others(session)
            if not all(each.attempt.is_before(attempt) for each in others):
                other = others[0]
                return f"rank {other.rank} of another job (process {other.pid} on {self.node}) writes to this directory"
            for each in others:  # stopped, or deaf: its next save would be refused
                with contextlib.suppress(OSError):
                    each.link.shutdown(socket.SHUT_RDWR)
                self._forget(each)
        return ""

    def _lead(self, message: Message, attempt: SavingAttempt) -> str:
        """Rank 0 is here: its attempt begins in the checkpoint directory. Empty, or why it must not."""
        owner = f"rank 0 of another job (process {message['pid']} on {self.node})"
        if why := self._writing.take(owner, attempt):
            return why
        with (
            self._beginning
        ):  # a save of the attempt before, which is on its way here, is this one's from now on
            try:
                why = attempts.begin(self.storage, attempt)
            except OSError as error:
                return f"the directory cannot be written: {error.strerror}"
            if not why:
                self._begun = attempt
        return why

    def _refusal(self) -> str:
        """Why no save is finished here any more: another holder has begun a newer attempt. Raises OSError."""
        with self._beginning:
            return "" if self._begun is None else attempts.refusal(self.storage, self._begun)

    def _others(self, session: str) -> list[RankConnection]:
        return [client for client in self._clients.values() if client.session != session]

    def _left(self, link: socket.socket) -> None:
        with self._lock:
            for client in list(self._clients.values()):
                if client.link is link:
                    self._forget(client)
            self._lock.notify_all()

    def _forget(self, client: RankConnection) -> None:
        if self._clients.get(client.rank) is client:
            del self._clients[client.rank]
        if client.sender is not None:
            client.sender.close()

    # ---- copies

    def _copied(self, link: socket.socket, message: Message) -> None:
        client = self._client_of(link)
        label, slot, name = (
            memory_copies.label_of(message["label"]),
            int(message["slot"]),
            str(message["name"]),
        )
        through = message["through"]
        if memory_copies.session_of(name) is None:
            raise ValueError("it is no name of a copy")
        if message["store"]:
            if client.rank == 0:
                self._saves.begin(label.session, label.step, label.world)
                with contextlib.suppress(OSError):
                    if not self._refusal():
                        self._saves.sweep()
            order = SaveOrder(
                slot, name, label, client.lead, lambda s: client.tell({"event": "written", "slot": s})
            )
            self._saves.add(order)
        if client.sender is not None:
            client.sender.add(slot, name, label, through)
        if through is not None and not self._saves.busy:  # a save may still read what the last attempt left
            self._drop_sessions_but(label.session)

    def _client_of(self, link: socket.socket) -> RankConnection:
        with self._lock:
            return next(client for client in self._clients.values() if client.link is link)

    def _drop_sessions_but(self, session: str) -> None:
        """Remove the copies of earlier attempts: the new attempt has a complete set, so they are not requested again."""
        with contextlib.suppress(OSError), hold_paths.held(self.hold) as hold:
            for name in os.listdir(hold):
                if memory_copies.session_of(name) not in (None, session):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=hold)

    def _read(self, link: socket.socket, message: Message) -> None:
        """One chunk of a copy with its checksum; no bytes where the copy is gone."""
        name, at = str(message["name"]), int(message["chunk"]) * CHUNK_BYTES
        data = b""
        if memory_copies.session_of(name) is not None:
            with (
                contextlib.suppress(OSError),
                hold_paths.held(self.hold) as hold,
                os.fdopen(hold_paths.open_copy(name, hold), "rb", buffering=0) as file,
            ):
                label = memory_copies.label_from(file.read(PAGE))
                if label is not None:
                    data = os.pread(file.fileno(), min(CHUNK_BYTES, label.size_bytes - at), PAGE + at)
        wire.send(link, {"crc": zlib.crc32(data)}, data)

    def _tell_lead(self, message: Message) -> None:
        with self._lock:
            lead = self._clients.get(0)
        if lead is not None:
            lead.tell(message)


def arguments() -> Any:
    """The options of ``python -m unidle.checkpoint.holder``."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m unidle.checkpoint.holder", description=__doc__)
    parser.add_argument("--storage", required=True, help="the checkpoint directory")
    parser.add_argument(
        "--hold", help="where copies are held (default: where ranks look, by storage and node)"
    )
    parser.add_argument("--node", default=socket.gethostname())
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address under which other nodes reach this one"
    )
    parser.add_argument(
        "--linger", type=float, default=900.0, help="seconds without ranks after which it ends"
    )
    parser.add_argument(
        "--foreground", action="store_true", help="stay in the foreground, for a service manager"
    )
    parser.add_argument(
        "--end",
        action="store_true",
        help="end the one that runs, once its saves are on storage, and remove its copies",
    )
    return parser


def _publish(name: str, folder: int, text: bytes) -> None:
    with replaced(name, at=folder, durable=True) as file:
        file.write(text)

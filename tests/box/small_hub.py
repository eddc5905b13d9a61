"""A small real hub: TLS, frames, pings, and a record of all that boxes said. And real boxes that dial it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unidle import wire
from unidle.clock import RealClock
from unidle.engine.local.ranks.process_tree import ticks_of
from waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
TRAINS = "import time\nfor i in range(1, 100_000): print(f'step {i}/100000 loss {1 / i:.4f}', flush=True); time.sleep(0.05)"
RUN = secrets.token_hex(8)  # by it, what is left of a rank is found on the whole machine
FENCE, DEADLINE_S, EVERY_S = 7, 30.0, 0.2


def certificates(place: Path, host: str = "DNS:unidle-hub") -> tuple[str, str, str]:
    """Certificate, key and authority of a hub, by openssl."""

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True, cwd=place)

    curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    openssl(f"req -x509 {curve} -keyout ca.key -out ca.pem -days 2 -subj /CN=ours")
    (place / "hub.san").write_text(f"subjectAltName={host}\n")
    openssl(f"req {curve} -keyout hub.key -out hub.csr -subj /CN=hub")
    openssl(
        "x509 -req -in hub.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out hub.pem -days 2 -extfile hub.san"
    )
    return str(place / "hub.pem"), str(place / "hub.key"), (place / "ca.pem").read_text()


class Peer:
    """One connection of a box. A thread reads its frames and pings it, until it is closed or ``mute``."""

    def __init__(self, hub: SmallHub, stream: ssl.SSLSocket) -> None:
        self.hub, self._stream = hub, stream
        self.frames: list[dict[str, Any]] = []
        self.mute = False  # sends no pings: the box is not renewed
        self.closed = False
        self._pongs = self._pings = 0
        self._lock = threading.Lock()
        self._unframer = wire.Unframer()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def hello(self) -> dict[str, Any]:
        wait_until(lambda: self.frames, what="a hello")
        return self.frames[0]

    def welcome(self, fence: int = FENCE, deadline_s: float = DEADLINE_S, v: int = wire.VERSION) -> Peer:
        self.fence = fence
        self.send(
            f=wire.WELCOME,
            v=v,
            fence=fence,
            every_ns=int(EVERY_S * 1e9),
            deadline_ns=int(deadline_s * 1e9),
            ack=0,
        )
        threading.Thread(target=self._ping, daemon=True).start()
        return self

    def send(self, **frame: Any) -> None:
        self.send_bytes(wire.encode(frame))

    def send_bytes(self, data: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._stream.sendall(data)

    def ask(self, f: str, **frame: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        frame.setdefault("fence", self.fence)
        number = self.hub.next_id()
        self.send(f=f, id=number, **frame)
        return self.answer(number)

    def answer(self, number: int) -> dict[str, Any]:
        return wait_until(
            lambda: next((x for x in list(self.frames) if x["f"] == wire.DONE and x["id"] == number), None),
            what=f"the answer to {number}",
        )

    def start(self, attempt: int, code: str, ranks: int = 1, **orders: Any) -> dict[str, Any]:
        """Start ranks of an attempt that run Python code."""
        entries = [
            {"rank": rank, "orders": python_orders(code, attempt, rank, **orders)} for rank in range(ranks)
        ]
        return self.ask(wire.START, attempt=attempt, ranks=entries)

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        while not self.closed:
            try:
                data = self._stream.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            self._unframer.limit = wire.FRAME_BYTES
            for payload in self._unframer.feed(data):
                self._take(wire.decode(payload))
        self.closed = True
        self._stream.close()

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["f"] == wire.PONG:
            self._pongs = frame["n"]
        elif frame["f"] == wire.MARKS:
            self.hub.took(frame)
        self.frames.append(frame)

    def _ping(self) -> None:
        while not self.closed:
            if not self.mute:
                self._pings += 1
                self.send(f=wire.PING, n=self._pings, fence=self.fence, ack=self._pongs)
            time.sleep(EVERY_S)


class SmallHub:
    """Listens on a port of this machine. ``marks``: what came of each rank, by ordinal; ``doubled``: what came again."""

    def __init__(self, place: Path, host: str = "DNS:unidle-hub") -> None:
        certificate, key, self.authority = certificates(place, host)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(certificate, key)
        self.peers: list[Peer] = []
        self.marks: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
        self.doubled: list[dict[str, Any]] = []
        self._id = 0
        self._server: socket.socket | None = None
        self.port = 0
        self.listen()

    def listen(self) -> None:
        self._server = socket.create_server(("127.0.0.1", self.port))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def vanish(self) -> None:
        """Nobody listens any more, and all connections are gone."""
        assert self._server is not None
        with contextlib.suppress(OSError):  # it was called before
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for peer in self.peers:
            peer.close()

    def next_id(self) -> int:
        self._id += 1
        return self._id

    def took(self, frame: dict[str, Any]) -> None:
        known = self.marks.setdefault((frame["attempt"], frame["rank"]), {})
        for ordinal, mark in enumerate(frame["marks"], frame["first"]):
            if ordinal in known:
                self.doubled.append(mark)
            known[ordinal] = {**mark, "received": time.clock_gettime_ns(time.CLOCK_BOOTTIME)}

    def peer(self, number: int = 1, timeout_s: float = 60) -> Peer:
        """The connection of that number, once it is there; the first is 1."""
        wait_until(lambda: len(self.peers) >= number, timeout_s, f"connection {number}")
        return self.peers[number - 1]

    def end_of(self, attempt: int, rank: int = 0, timeout_s: float = 60) -> dict[str, Any]:
        """The last mark of a rank, once it has ended."""

        def find() -> dict[str, Any] | None:
            marks = self.marks.get((attempt, rank), {})
            return next((m for m in list(marks.values()) if m["k"] in ("exit", "lost")), None)

        return wait_until(
            find, timeout_s, f"the end of rank {rank}; marks: {self.marks.get((attempt, rank))}"
        )

    def mark(self, kind: str, attempt: int = 1, rank: int = 0, timeout_s: float = 60) -> dict[str, Any]:
        """The first mark of a kind, once it has come."""
        return wait_until(
            lambda: next(
                (m for m in list(self.marks.get((attempt, rank), {}).values()) if m["k"] == kind), None
            ),
            timeout_s,
            f"a mark {kind}",
        )

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                raw, _ = server.accept()
                self.peers.append(Peer(self, self._context.wrap_socket(raw, server_side=True)))
            except ssl.SSLError:
                continue
            except OSError:
                if server.fileno() < 0:
                    return


class RealBox:
    """A box process and its directory."""

    def __init__(self, place: Path, hub: SmallHub, job: str = "job-1", /, **settings: Any) -> None:
        self.directory = place / "box"
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.runs = place / "runs"
        self.job = job
        content = {
            "hub": [["127.0.0.1", hub.port]], "authority": hub.authority, "token": "secret", "node": "n1", "job": job,
            "runs": str(self.runs), **settings,
        }  # fmt: skip
        path = self.directory / "box.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        self.errors = self.directory / "box.err"
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, command: list[str] | None = None, **more: Any) -> RealBox:
        command = command or [sys.executable, "-P", "-m", "unidle.box"]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, str(self.directory), *words],
                stderr=errors,
                stdin=subprocess.DEVNULL,
                cwd="/",
                **more,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def rank(self, attempt: int = 1, rank: int = 0) -> Path:
        return self.runs / self.job / str(attempt) / f"rank{rank}"

    def journal(self, attempt: int = 1, rank: int = 0) -> list[dict[str, Any]]:
        path = self.rank(attempt, rank) / "journal.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def journal_ends(self, attempt: int = 1, rank: int = 0) -> bool:
        """Whether the last line of a journal is an end, whatever is before it."""
        lines = (self.rank(attempt, rank) / "journal.jsonl").read_bytes().splitlines()
        return bool(lines) and (b'"exit"' in lines[-1] or b'"lost"' in lines[-1])

    def close(self) -> None:
        """End it and all that it started."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for path in self.runs.glob("*/*/rank*/supervisor.json"):
            with contextlib.suppress(OSError, ValueError):
                known = json.loads(path.read_text())
                if ticks_of(known["pid"]) != known["ticks"]:
                    continue  # gone, or its number is that of another namespace
                os.kill(known["pid"], signal.SIGUSR1)
                wait_until(
                    lambda pid=known["pid"]: not Path(f"/proc/{pid}/root").is_dir() or _is_zombie(pid), 60
                )


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def python_orders(code: str, attempt: int = 1, rank: int = 0, **more: Any) -> dict[str, Any]:
    """Orders of a rank that runs Python code."""
    clock = RealClock()
    return {
        "argv": [sys.executable, "-u", "-c", code], "workdir": "/", "env": {"UNIDLE_RUN_ID": f"{RUN}-{attempt}", "UNIDLE_RANK": str(rank)},
        "unset": [], "clock_offset_ns": clock.offset_ns, "grace_ns": 2_000_000_000, "groups": {}, **more,
    }  # fmt: skip


@contextlib.contextmanager
def hub_and_box(place: Path, *words: str, **settings: Any) -> Iterator[tuple[SmallHub, RealBox]]:
    """A hub, and a box that has dialled it."""
    hub = SmallHub(place)
    box = RealBox(place, hub, **settings)
    try:
        yield hub, box.run(*words)
    finally:
        box.close()
        hub.vanish()


def died(pid: int) -> Callable[[], bool]:
    """Whether a process is gone, or waits to be collected."""
    return lambda: not Path(f"/proc/{pid}").is_dir() or _is_zombie(pid)

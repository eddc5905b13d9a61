"""A client that can do everything wrong: a blocking TLS socket, and frames as bytes."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from unidle import wire
from unidle.clock import RealClock, boottime_ns
from unidle.hub.authority import SERVER_NAME
from unidle.hub.limits import HubLimits
from unidle.hub.protocol import Joined, Left, Received
from unidle.hub.server import HubServer, open_hub
from waiting import wait_until

JOB = "job-1"


@contextmanager
def running(state: Path, listen: str = "127.0.0.1:0", **limits: int) -> Iterator[HubServer]:
    """A hub that listens."""
    hub = open_hub(listen, str(state), RealClock(), 7, limits=HubLimits(**limits))
    try:
        yield hub
    finally:
        hub.close()


def join_token(state: Path) -> str:
    return str(json.loads((state / "hub" / "join").read_text())["token"])


def polled(hub: HubServer, kind: type, timeout_s: float = 60.0) -> list[Any]:
    """Events until one of this kind is among them."""
    found: list[Joined | Left | Received] = []

    def more() -> bool:
        found.extend(hub.poll())
        return any(isinstance(event, kind) for event in found)

    wait_until(more, timeout_s, f"{kind.__name__} after {found}")
    return found


class RawClient:
    """``source``: the address that it dials from. It is connected, without TLS, when it is made."""

    def __init__(self, hub: HubServer, source: str = "127.0.0.1") -> None:
        self.hub = hub
        self.sock = socket.create_connection(hub.addresses[0][:2], timeout=20, source_address=(source, 0))
        self.unframer = wire.Unframer(wire.FRAME_BYTES)
        self.received: list[dict[str, Any]] = []
        self.pongs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def tls(self) -> RawClient:
        context = ssl.create_default_context(cadata=self.hub.authority)
        self.sock = context.wrap_socket(self.sock, server_hostname=SERVER_NAME)
        return self

    def send(self, *frames: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(wire.encode(frame) for frame in frames))

    def hello(
        self, kind: str = "box", node: str = "n1", token: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Say hello and return the answer."""
        job = JOB if kind == "box" else ""
        if token is None:
            token = self.hub.box_token(node, job)
        hello = {
            "f": "hello",
            "v": wire.VERSION,
            "kind": kind,
            "node": node,
            "job": job,
            "token": token,
            "now": boottime_ns(),
        }
        self.send({**hello, **more})
        return self.next()

    def next(self) -> dict[str, Any]:
        """The next frame. Errors: EOFError at the end."""
        while not self.received:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self.received += map(wire.decode, self.unframer.feed(data))
        return self.received.pop(0)

    def until(self, name: str) -> dict[str, Any]:
        """The next frame of this name; pings on the way are answered."""
        while (frame := self.next())["f"] != name:
            if frame["f"] == "ping":
                self.pong(frame["n"])
        return frame

    def pong(self, ping: int, **more: int) -> None:
        self.pongs += 1
        self.send({"f": "pong", "n": self.pongs, "ping": ping, "now": boottime_ns(), **more})

    def ended(self) -> bool:
        """Whether the hub closes it within the time of its socket."""
        try:
            while True:
                self.next()
        except EOFError:
            return True
        except TimeoutError:
            return False


def box(hub: HubServer, node: str = "n1", source: str = "127.0.0.1") -> RawClient:
    """A box that was welcomed."""
    client = RawClient(hub, source).tls()
    answer = client.hello(node=node)
    assert answer["f"] == "welcome", answer
    return client


def until_after(t_ns: int, clock: RealClock) -> None:
    while clock.now_ns() <= t_ns:
        time.sleep(0.001)

"""A hub in between: hosts dial it, it dials the controller, and it repeats, reorders, cuts and invents frames on the way.

TLS keeps others from doing so. The proxy has an authority of its own, which is in the join file of its hosts.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import socket
import ssl
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from box.small_hub import certificates
from unidle import wire
from unidle.engine.local.ranks import netns

_CHUNK: Final = 65536


class FrameProxy:
    """``rate``: the share of frames to which something happens, once :attr:`active`. ``done`` counts what was done."""

    def __init__(
        self, place: Path, space: str, address: str, port: int, hub: tuple[str, int], join: Path, seed: int
    ) -> None:
        place.mkdir()
        certificate, key, authority = certificates(place, f"DNS:unidle-hub,IP:{address}")
        known = json.loads(join.read_text())
        self.join_file = place / "join"
        self.join_file.touch(mode=0o600)
        self.join_file.write_text(json.dumps({"token": known["token"], "authority": authority}))
        self.address = f"{address}:{port}"
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(certificate, key)
        self._client = ssl.create_default_context(cadata=known["authority"])
        self._space, self.hub = (
            space,
            hub,
        )  # the controller; later connections go to another where that is changed
        self._dice = random.Random(seed)
        self.rate, self.active = 0.15, False
        self.done: Counter[str] = Counter()
        self._listener = netns.within(space, lambda: socket.create_server((address, port)))
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(raw,), daemon=True).start()

    def _carry(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError, wire.Malformed, ValueError), contextlib.ExitStack() as held:
            raw.settimeout(20)
            near = held.enter_context(self._server.wrap_socket(raw, server_side=True))
            dialled = netns.within(self._space, lambda: socket.create_connection(self.hub, timeout=20))
            far = held.enter_context(self._client.wrap_socket(dialled, server_hostname="unidle-hub"))
            ways = {near: _Way(far), far: _Way(near)}
            while not self._closed:
                waiting = [one for one in ways if one.pending()]
                for end in waiting or select.select(list(ways), [], [], 1.0)[0]:
                    if not self._pass(end, ways[end]):
                        return

    def _pass(self, end: ssl.SSLSocket, way: _Way) -> bool:
        """Carry what has come; whether the connection goes on."""
        data = end.recv(_CHUNK)
        if not data:
            return False
        for payload in way.unframer.feed(data):
            for one in self._changed(payload, way):
                way.to.sendall(one)
            if way.cut:
                return False
        return True

    def _changed(self, payload: bytes, way: _Way) -> list[bytes]:
        """What is sent in place of a frame. The hello and the welcome pass as they are, or nothing would ever happen."""
        frame = wire.framed(payload)
        held, way.held = way.held, b""
        way.frames += 1
        if not self.active or way.frames < 2 or self._dice.random() >= self.rate:
            return [frame, held] if held else [frame]
        what = self._dice.choice(("repeated", "repeated", "reordered", "reordered", "cut", "random"))
        self.done[what] += 1
        if what == "repeated":
            return [frame, held, frame] if held else [frame, frame]
        if what == "reordered":
            way.held = frame  # it follows the next one
            return [held] if held else []
        way.cut = True
        if what == "cut":
            return [frame[: self._dice.randrange(len(frame))]]
        return [wire.framed(self._dice.randbytes(self._dice.randrange(1, 2000)))]


class _Way:
    """One direction."""

    def __init__(self, to: ssl.SSLSocket) -> None:
        self.to = to
        self.unframer = wire.Unframer(wire.FRAME_BYTES)
        self.held = b""
        self.frames = 0
        self.cut = False

"""A longer wire: frames between a node and the switch that arrive later. In user space, so no kernel module is needed.

The node's port leaves the bridge; a process carries frames between it and a new port of the bridge, those from and
to some addresses after a delay. Run as ``python -m unidle.drill.link_delay NAMESPACE PORT NEW_PORT``; it reads lines
``ADDRESS MILLISECONDS`` and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import socket
import subprocess
import sys
import time
from typing import Final

from unidle.engine.local.ranks import netns
from unidle.errors import CannotRun

_SOL_PACKET: Final = 263
_VNET_HDR: Final = 15  # lengths and checksums that hardware would fill in travel with each frame
_IGNORE_OUTGOING: Final = 23
_ALL: Final = 0x0003
_OUTGOING: Final = 4
_VNET_BYTES: Final = 10
_QUEUE_BYTES: Final = 8 << 20
_START_S: Final = 10.0
_IPV4: Final = b"\x08\x00"


class Wire:
    """The wire of one port of the switch, until :meth:`close`. Errors: :class:`CannotRun`."""

    def __init__(self, switch: str, port: str) -> None:
        self._switch, self._port, self._bridged = switch, port, f"w{port}"
        self._delays: dict[str, float] = {}
        self._relayed = f"r{port}"
        self._ip("link", "add", self._bridged, "type", "veth", "peer", "name", self._relayed)
        for name in (self._bridged, self._relayed):
            self._ip("link", "set", name, "up")
        command = [sys.executable, "-P", "-m", "unidle.drill.link_delay", switch, port, self._relayed]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], _START_S)[0]
        if not ready or not self._process.stdout.readline():
            self.close()
            raise CannotRun("delays are not possible here: the wire did not start", remedy="run as root")
        self._ip("link", "set", port, "nomaster")
        self._ip("link", "set", self._bridged, "master", "br0")

    def set(self, address: str, delay_ms: float) -> bool:
        """Delay what goes to and comes from an address; True while anything is delayed."""
        self._delays[address] = delay_ms
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{address} {delay_ms}\n".encode())
            self._process.stdin.flush()
        return any(self._delays.values())

    def close(self) -> None:
        """The port is on the bridge again."""
        for words in (("set", self._bridged, "nomaster"), ("set", self._port, "master", "br0")):
            self._ip("link", *words, check=False)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._ip("link", "del", self._bridged, check=False)

    def _ip(self, *words: str, check: bool = True) -> None:
        subprocess.run(
            ["ip", "-n", self._switch, *words], check=check, capture_output=True, stdin=subprocess.DEVNULL
        )


def _opened(port: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    made.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    with contextlib.suppress(OSError):  # older kernels: told apart below
        made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, _QUEUE_BYTES)
    made.bind((port, 0))
    made.setblocking(False)
    return made


def _delay_s(frame: bytes, delays: dict[str, float]) -> float:
    """The delay of a frame: that of the address at its other end."""
    at = _VNET_BYTES
    if frame[at + 12 : at + 14] != _IPV4:
        return 0.0
    source, target = frame[at + 26 : at + 30], frame[at + 30 : at + 34]
    return max(delays.get(socket.inet_ntoa(source), 0.0), delays.get(socket.inet_ntoa(target), 0.0))


def relay(port: str, other: str) -> None:
    """Carry frames between two interfaces until standard input ends."""
    ends = {one.fileno(): one for one in (_opened(port), _opened(other))}
    first, second = ends
    delays: dict[str, float] = {}
    waiting: list[tuple[float, int, int, bytes]] = []
    count, rest = 0, b""
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, out, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full queue loses frames, as on a real wire
                ends[out].send(frame)
        timeout = max(waiting[0][0] - now, 0.0) if waiting else None
        for fd in select.select([0, first, second], [], [], timeout)[0]:
            if fd == 0:
                read = os.read(0, 4096)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    address, _, ms = line.decode().partition(" ")
                    delays[address] = float(ms) / 1e3
                continue
            for frame in _arrived(ends[fd]):
                count += 1
                due = time.monotonic() + _delay_s(frame, delays)
                heapq.heappush(waiting, (due, count, second if fd == first else first, frame))


def _arrived(end: socket.socket) -> list[bytes]:
    found: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(found) < 64:
            frame, address = end.recvfrom(1 << 17)
            if address[2] != _OUTGOING:
                found.append(frame)
    return found


if __name__ == "__main__":
    netns.enter(sys.argv[1])
    relay(sys.argv[2], sys.argv[3])

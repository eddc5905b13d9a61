"""A bad wire between a node of a lab and its switch: frames are lost at random, or come later. In user space.

The kernel here has neither netem nor classifiers, so that a process carries the frames, as that of ``unidle.drill.link_delay``
does. A frame of this wire may be of up to 64 KiB, as between a driver and its hardware: that the loss of one costs more
than on a real wire makes the fault worse, not better. Run as ``python lossy_wire.py NAMESPACE PORT OTHER LOSS MS SEED``.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from unidle.drill.lab import Lab
from unidle.drill.link_delay import _arrived, _opened
from unidle.engine.local.ranks import netns

_READY_S: Final = 20.0


class LossyWire:
    """The wire of a node until :meth:`close`. ``loss``: the share of frames, in each direction, that is lost."""

    def __init__(self, lab: Lab, node: str, loss: float, delay_ms: float, seed: int = 0) -> None:
        self._switch = f"{lab.tag}-switch"
        self._port = f"port{lab.names.index(node)}"
        self._bridged, self._relayed = f"l{self._port}", f"m{self._port}"
        self._ip("link", "add", self._bridged, "type", "veth", "peer", "name", self._relayed)
        for name in (self._bridged, self._relayed):
            self._ip("link", "set", name, "up")
        words = [self._switch, self._port, self._relayed, str(loss), str(delay_ms), str(seed)]
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__)), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], _READY_S)[0]
        assert ready and self._process.stdout.readline(), "the wire did not start"
        self._ip("link", "set", self._port, "nomaster")
        self._ip("link", "set", self._bridged, "master", "br0")

    def close(self) -> None:
        """The port is on the switch again."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("link", "set", self._bridged, "nomaster")
            self._ip("link", "set", self._port, "master", "br0")
        self._process.kill()
        self._process.communicate()
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("link", "del", self._bridged)

    def _ip(self, *words: str) -> None:
        subprocess.run(
            ["ip", "-n", self._switch, *words], check=True, capture_output=True, stdin=subprocess.DEVNULL
        )


def carry(port: str, other: str, loss: float, delay_s: float, dice: random.Random) -> None:
    """Until standard input ends."""
    ends = {one.fileno(): one for one in (_opened(port), _opened(other))}
    first, second = ends
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, out, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full queue loses frames too
                ends[out].send(frame)
        timeout = max(waiting[0][0] - now, 0.0) if waiting else None
        for fd in select.select([0, first, second], [], [], timeout)[0]:
            if fd == 0:
                return
            for frame in _arrived(ends[fd]):
                count += 1
                if dice.random() >= loss:
                    out = second if fd == first else first
                    heapq.heappush(waiting, (time.monotonic() + delay_s, count, out, frame))


if __name__ == "__main__":
    space, one, two, lost, late_ms, seeded = sys.argv[1:]
    netns.enter(space)
    carry(one, two, float(lost), float(late_ms) / 1e3, random.Random(int(seeded)))

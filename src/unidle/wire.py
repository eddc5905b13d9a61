"""Frames between the hub and its clients, the boxes and agents: their form, their bounds and their names.

A frame is 4 bytes of length, big-endian, and as many bytes of one JSON object in UTF-8. Its key ``f``
names it. Both sides run over TLS; the hub decodes with msgspec, a box with the standard library, and this
module needs neither: it also runs on the Python of a host, from 3.8 on.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

VERSION = 2
"""Raised with each release in which frames differ, by one: 1 was the first of hosts; 2 has frames of profiles, looks and mounts."""
HEADER = struct.Struct(">I")
HELLO_BYTES = 64 * 1024  # the first frame of a connection, and the only one before its welcome
FRAME_BYTES = 1024 * 1024  # each later one
HELLO_WITHIN_S = 5.0  # TLS and hello together
UNGREETED = 64  # connections without an accepted hello
UNGREETED_OF_ADDRESS = 8  # of these, from one address
UNREAD_BYTES = 8 * 1024 * 1024  # a peer that leaves more unread is closed
EVERY_NS = 1_000_000_000  # between two pings

# from a client to the hub
HELLO = "hello"
PONG = "pong"
MARKS = "marks"
DONE = "done"
SEEN = "seen"
BYE = "bye"
ENDS = "ends"  # what a box has seen: a signal asks it to end its ranks
VITALS = "vitals"  # what an agent has seen of the ranks of a gang on its host
USE = "use"  # what an agent has seen of the devices of a gang on its host, and the order to look
PROFILE = "profile"  # the order to an agent to profile ranks, or for a part of a profile; readers may give it
PROFILING = "profiling"  # the order to an agent to profile all ranks again and again, and what it has seen
SLICES = "slices"  # the order to an agent to make what ranks get of devices that are cut
SLICES_HELD = "slices_held"  # the order to an agent to free what other attempts than these hold
MOUNTS = "mounts"  # the order to an agent to ask mounts whether they respond, and what it has seen
DEVICES = (
    "devices"  # what an agent has seen: which devices pods really have, and the order to look at one pod
)
STACKS = "stacks"  # the order to an agent to read the stacks of ranks, or to be ready for that
LOOKED = "looked"  # what a box has seen: the newest checkpoint was read before an attempt
OUTPUT = "output"  # what a box has seen: lines that a rank printed
# from the hub to any client
WELCOME = "welcome"
REFUSED = "refused"
PING = "ping"
# from the hub to a box
RESUME = "resume"
PREPARE = "prepare"
START = "start"
STOP = "stop"
RELEASE = "release"
END = "end"
FETCH = "fetch"  # from a reader: a part of a file of a rank, wherever it is
FORGET = "forget"  # from a reader: a host that is gone, or was installed again
ASK = "ask"  # from a reader: an order that the agent of a host is to be given
READ = "read"  # to an agent too
# from the hub to an agent
BOX = "box"
RUN = "run"

FROM_CLIENT = frozenset({HELLO, PONG, MARKS, DONE, SEEN, FETCH, ASK, FORGET, BYE})
TO_CLIENT = frozenset({WELCOME, REFUSED, PING})
TO_BOX = TO_CLIENT | {RESUME, PREPARE, START, STOP, RELEASE, END, READ}
TO_AGENT = TO_CLIENT | {BOX, RUN, READ}

FENCED = "fence"  # why a command with an older fence than the newest one was refused


class Malformed(ValueError):
    """What came is no frame, or is out of bounds: the connection ends with a ``refused`` of this text."""


def speaks(version: int) -> bool:
    """Whether this release talks to a peer of that version: to its own, and to one before and after it."""
    return abs(version - VERSION) <= 1


def framed(payload: bytes, limit: int = FRAME_BYTES) -> bytes:
    """A frame of encoded JSON. Errors: ValueError above ``limit`` bytes, so that no frame is sent that would be refused."""
    if len(payload) > limit:
        raise ValueError(f"a frame is above the limit of {limit} bytes: {len(payload)}")
    return HEADER.pack(len(payload)) + payload


def compact(content: object) -> bytes:
    """JSON in as few bytes as it has; half a surrogate pair, which is no UTF-8, becomes a question mark."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def encode(frame: dict[str, Any], limit: int = FRAME_BYTES) -> bytes:
    """The bytes of a frame, with its length. Errors: ValueError above ``limit`` bytes."""
    return framed(compact(frame), limit)


def decode(payload: bytes) -> dict[str, Any]:
    """The object of a frame's bytes. Errors: Malformed when they are no JSON object with a name in ``f``."""
    try:
        found = json.loads(payload.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a frame is no JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise Malformed("a frame is no JSON object")
    if not isinstance(found.get("f"), str):
        raise Malformed('a frame has no name in its key "f"')
    return found


class Unframer:
    """Cuts a stream of bytes into the payloads of its frames. It holds at most one frame that is not whole yet.

    ``limit`` bounds the next frames; who accepts a hello sets it to :data:`FRAME_BYTES`.
    """

    def __init__(self, limit: int = HELLO_BYTES) -> None:
        self.limit = limit
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a frame of which the rest has not come."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are whole now. Errors: Malformed for a length of zero or above the limit.

        A server that accepts a hello takes it with :meth:`one`, because the limit changes after it.
        """
        self._held += data
        found: list[bytes] = []
        while True:
            payload = self.one()
            if payload is None:
                return found
            found.append(payload)

    def one(self, data: bytes = b"") -> bytes | None:
        """The next payload, None while it is not whole. Errors: as of :meth:`feed`."""
        self._held += data
        if len(self._held) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._held)
        if not 0 < length <= self.limit:
            raise Malformed(f"a frame of {length} bytes is not within 1 and {self.limit}")
        end = HEADER.size + length
        if len(self._held) < end:
            return None
        payload = bytes(self._held[HEADER.size : end])
        del self._held[:end]
        return payload

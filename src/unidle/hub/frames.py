"""Frames as structs: what the hub and its clients say to each other. `docs/rooms/hub.md` has the order of a connection.

Their names in ``f`` are those of :mod:`unidle.wire`. Import the module, not its names: ``frames.Start`` is the frame,
``Start`` alone is a plan. Unknown keys are ignored, as a newer peer may have more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from unidle import wire

Ordinal = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Counters, ordinals of marks, ranks, attempts, bytes: whole numbers that every JSON reader keeps exactly."""
TimeNs = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(max_length=253)]
"""A node or a job."""
Why = Annotated[str, msgspec.Meta(max_length=4096)]
Kind = Literal["agent", "box", "reader"]
"""A reader is a command of the store's owner that reads files of ranks, and profiles them."""


class RankHeld(msgspec.Struct, frozen=True):
    """What a box has of one rank: ``marks`` in its journal; ``ended``: its end is among them."""

    marks: Ordinal = 0
    ended: bool = False


class AttemptHeld(msgspec.Struct, frozen=True):
    """One attempt whose rank directories a box still has; keys of ``ranks`` are ranks in decimal."""

    attempt: Ordinal
    ranks: dict[str, RankHeld] = {}


class BoxHeld(msgspec.Struct, frozen=True):
    """The part of a box in its hello."""

    attempts: list[AttemptHeld] = []


class AgentHeld(msgspec.Struct, frozen=True):
    """The part of an agent in its hello. ``node``: a ``unidle.fleet.Node`` as JSON; ``boxes``: jobs whose box runs here."""

    node: dict[str, Any] = {}
    boxes: list[str] = []
    release: str = ""


class Hello(msgspec.Struct, frozen=True, tag_field="f", tag=wire.HELLO):
    """The first frame of a client. ``now``: its CLOCK_BOOTTIME in ns; ``n`` is 0, as of the zeroth pong."""

    v: int
    kind: Kind
    node: Name
    token: Annotated[str, msgspec.Meta(max_length=16_384)] = ""  # one of a cluster has up to a few kB
    job: Name = ""
    boot: Annotated[str, msgspec.Meta(max_length=128)] = ""
    now: TimeNs = 0
    n: Ordinal = 0
    box: BoxHeld | None = None
    agent: AgentHeld | None = None


class Pong(msgspec.Struct, frozen=True, tag_field="f", tag=wire.PONG):
    """Answer to ``ping``. ``n`` is the client's own counter from 1; ``now`` its CLOCK_BOOTTIME in ns."""

    n: Ordinal
    ping: Ordinal
    now: TimeNs


class Marks(msgspec.Struct, frozen=True, gc=False, tag_field="f", tag=wire.MARKS):
    """Marks ``first``, ``first + 1``, ... of one rank: each the JSON of a ``unidle.events.marks.Mark``, not yet decoded."""

    attempt: Ordinal
    rank: Ordinal
    first: Ordinal
    marks: tuple[msgspec.Raw, ...]


class Done(msgspec.Struct, frozen=True, tag_field="f", tag=wire.DONE):
    """The one answer to the command with this ``id``; ``why`` is :data:`unidle.wire.FENCED` for an older fence."""

    id: Ordinal
    ok: bool
    why: Why = ""
    data: dict[str, Any] = {}


class Seen(msgspec.Struct, frozen=True, tag_field="f", tag=wire.SEEN):
    """An observation. ``what``: ``node``, ``vitals``, ``use``, ``signs``, ``left``, ``ends``, ``looked``, ``output``; a newer client may have others."""

    what: Annotated[str, msgspec.Meta(max_length=64)]
    body: dict[str, Any] = {}


class Fetch(msgspec.Struct, frozen=True, tag_field="f", tag=wire.FETCH):
    """A reader requests part of a file of a rank, from the host that has it. Answer: ``done``, with the data of :class:`Read`."""

    id: Ordinal
    node: Name
    job: Name
    attempt: Ordinal
    rank: Ordinal
    file: Name
    offset: int = 0
    bytes: Ordinal = 65536


class Forget(msgspec.Struct, frozen=True, tag_field="f", tag=wire.FORGET):
    """A reader has a host leave the fleet that does not answer: its name is free from then on. Answer: ``done``."""

    id: Ordinal
    node: Name


class Ask(msgspec.Struct, frozen=True, tag_field="f", tag=wire.ASK):
    """A reader requests something of the agent of a host. ``what`` is ``profile``. Answer: ``done``, as of :class:`Run`."""

    id: Ordinal
    node: Name
    what: Annotated[str, msgspec.Meta(max_length=64)]
    body: dict[str, Any] = {}


class Bye(msgspec.Struct, frozen=True, tag_field="f", tag=wire.BYE):
    """It leaves on purpose."""

    why: Why = ""


class Welcome(msgspec.Struct, frozen=True, tag_field="f", tag=wire.WELCOME):
    """The hello is accepted. ``token``: an agent's own one, from now on; ``deadline_ns``: the lease of a box."""

    v: int
    fence: Ordinal
    every_ns: TimeNs
    deadline_ns: TimeNs
    ack: Ordinal = 0
    token: str = ""


class Refused(msgspec.Struct, frozen=True, tag_field="f", tag=wire.REFUSED):
    """The hub closes the connection after this frame."""

    why: Why
    remedy: Why = ""


class Ping(msgspec.Struct, frozen=True, tag_field="f", tag=wire.PING):
    """``ack``: ``n`` of the newest pong of this connection that came, 0 for the hello."""

    n: Ordinal
    fence: Ordinal
    ack: Ordinal = 0


class Resume(msgspec.Struct, frozen=True, tag_field="f", tag=wire.RESUME):
    """Send marks of an attempt from these ordinals on; keys are ranks in decimal. ``output``: and what they print, from these bytes on."""

    attempt: Ordinal
    known: dict[str, Ordinal] = {}
    output: dict[str, Ordinal] | msgspec.UnsetType = msgspec.UNSET


class Printed(msgspec.Struct, frozen=True):
    """In ``seen`` of a box: what a rank printed from byte ``at`` of its output on, in parts with the controller's time of each.

    ``lines``: so many were printed before, where bytes before it are left out.
    """

    attempt: Ordinal
    rank: Ordinal
    at: Ordinal
    parts: list[tuple[TimeNs, bytes]]
    lines: Ordinal | None = None


class SaveWish(msgspec.Struct, frozen=True):
    """Where a job saves: ``path`` is that of its checkpoints.

    ``look``: read the newest one before an attempt starts; ``aside``: move a bad one away, while the start waits.
    ``hold``: where other hosts reach this one's holder of copies in memory, empty for none; ``hold_dir``: where the copies
    are, if not in the usual place.
    """

    path: str
    look: bool = False
    aside: bool = False
    hold: str = ""
    hold_dir: str = ""


class BadCheckpoint(msgspec.Struct, frozen=True):
    """A bad checkpoint that a look found; ``moved_to``: where it is now, ``step``: what it holds."""

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    because: Why
    moved_to: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    step: Ordinal | None = None


class Looked(msgspec.Struct, frozen=True):
    """What a look before an attempt found so far; ``over``: it is done. In ``seen``, and in the answer to :class:`Prepare`."""

    attempt: Ordinal
    over: bool
    bad: list[BadCheckpoint] = []


class Prepare(msgspec.Struct, frozen=True, tag_field="f", tag=wire.PREPARE):
    """Get ready for an attempt. The leader answers ``data: {"port": P}`` and holds the bound port for rank 0.

    With a look, its answer has the state of that in ``looked`` (:class:`Looked`), and ``seen`` has what comes later.
    """

    id: Ordinal
    fence: Ordinal
    attempt: Ordinal
    leader: bool = False
    saves: SaveWish | None = None


class RankOrders(msgspec.Struct, frozen=True):
    """One rank to start; ``orders``: ``SupervisorOrders`` as JSON."""

    rank: Ordinal
    orders: dict[str, Any]
    leader: bool = False


class Start(msgspec.Struct, frozen=True, tag_field="f", tag=wire.START):
    """Start these ranks of an attempt."""

    id: Ordinal
    fence: Ordinal
    attempt: Ordinal
    ranks: list[RankOrders]


class Stop(msgspec.Struct, frozen=True, tag_field="f", tag=wire.STOP):
    """SIGTERM, ``grace_ns``, SIGKILL; 0 kills at once."""

    id: Ordinal
    fence: Ordinal
    attempt: Ordinal
    ranks: list[Ordinal]
    grace_ns: TimeNs = 0


class Release(msgspec.Struct, frozen=True, tag_field="f", tag=wire.RELEASE):
    """All marks of the attempt are in the log: its files may go."""

    id: Ordinal
    fence: Ordinal
    attempt: Ordinal


class End(msgspec.Struct, frozen=True, tag_field="f", tag=wire.END):
    """The box ends when no rank lives."""

    fence: Ordinal


class Read(msgspec.Struct, frozen=True, tag_field="f", tag=wire.READ):
    """Part of a rank's file; a negative ``offset`` counts from the end. Answer: ``{"text": base64, "size": bytes, "inode"}``.

    ``job`` is set for an agent, for a box that has ended.
    """

    id: Ordinal
    attempt: Ordinal
    rank: Ordinal
    file: Name
    offset: int = 0
    bytes: Ordinal = 65536
    job: Name = ""


class Box(msgspec.Struct, frozen=True, tag_field="f", tag=wire.BOX):
    """Start the box of a job, or find that it runs. ``token`` is the box's own one."""

    id: Ordinal
    fence: Ordinal
    job: Name
    token: str
    env: dict[str, str] = {}


class Run(msgspec.Struct, frozen=True, tag_field="f", tag=wire.RUN):
    """Something for an agent to do: ``what`` is ``check``, ``hook``, ``use``, ``stacks``, ``profile``, ``profiling`` or ``mounts``; ``body`` what it needs."""

    id: Ordinal
    fence: Ordinal
    what: Annotated[str, msgspec.Meta(max_length=64)]
    body: dict[str, Any] = {}


Passed = Marks | Done | Seen | Fetch | Ask | Forget
"""Of a client: what the hub passes on to the engine."""
FromClient = Hello | Pong | Marks | Done | Seen | Fetch | Ask | Forget | Bye
Command = Resume | Prepare | Start | Stop | Release | End | Read | Box | Run | Done
"""What a user of the hub sends; it sends the rest itself."""
ToClient = Welcome | Refused | Ping | Command


class Nameless(msgspec.Struct, frozen=True):
    """Only the name of a frame of an unknown kind."""

    f: Annotated[str, msgspec.Meta(max_length=64)]


_ENCODE = msgspec.json.Encoder()
_FROM_CLIENT: msgspec.json.Decoder[FromClient] = msgspec.json.Decoder(FromClient)
_TO_CLIENT: msgspec.json.Decoder[ToClient] = msgspec.json.Decoder(ToClient)
_NAMELESS = msgspec.json.Decoder(Nameless)
_MOST = 1 << 62  # half of what 64 bits hold: times of hosts are moved to the controller's clock
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encoded(frame: FromClient | ToClient, limit: int = wire.FRAME_BYTES) -> bytes:
    """The bytes of a frame, with its length. Errors: ValueError above ``limit`` bytes."""
    return wire.framed(_ENCODE.encode(frame), limit)


def from_client(payload: bytes, *, newer: bool = False) -> FromClient | None:
    """The frame of a client; None for one of an unknown name, where the client is ``newer`` than this release.

    Errors: wire.Malformed for all else.
    """
    try:
        frame = _FROM_CLIENT.decode(payload)
    except _WRONG as error:
        _pass_over(payload, error, wire.FROM_CLIENT, newer=newer)
        return None
    if type(frame) is Seen:
        _check_numbers(frame.body)
    elif type(frame) is Hello and frame.agent is not None:
        _check_numbers(frame.agent.node)
    return frame


def _check_numbers(content: dict[str, Any]) -> None:
    """What has no type yet goes into the log and its snapshots, which hold whole numbers of 64 bits. Errors: wire.Malformed."""
    waiting: list[Any] = [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, int) and not -_MOST <= one < _MOST:
            raise wire.Malformed("a number in a frame is above 64 bits")


def to_client(payload: bytes, *, newer: bool = False) -> ToClient | None:
    """The frame of a hub, as :func:`from_client`."""
    try:
        return _TO_CLIENT.decode(payload)
    except _WRONG as error:
        _pass_over(payload, error, wire.TO_BOX | wire.TO_AGENT, newer=newer)
        return None


def _pass_over(payload: bytes, error: Exception, known: frozenset[str], *, newer: bool) -> None:
    """Errors: wire.Malformed, unless this is a frame of an unknown name of a newer release."""
    name = ""
    if newer:
        with suppress(*_WRONG):
            name = _NAMELESS.decode(payload).f
    if not name or name in known:
        raise wire.Malformed(f"a frame is not as agreed: {error}") from None

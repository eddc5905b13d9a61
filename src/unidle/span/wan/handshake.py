"""Authentication of a new connection: both sides prove that they have the run's secret, before other data is
read.

    connects -> {version, run, from, to, instance, flow, flows, early, nonce}
    listens  -> {version, run, from, instance, early, nonce, proof} or {refused}
    connects -> {proof} or {refused}
    listens  -> {welcome} or {refused}

Each line is JSON behind a length of 4 bytes. A proof is the HMAC-SHA-256 of both first lines under the secret. These calls
take the socket's timeout at most, all messages together: they run in threads of their own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

from unidle.span.wan.api import Refused
from unidle.span.wan.frames import VERSION

_LENGTH: Final = struct.Struct("!4sI")
_MAGIC: Final = b"UDLH"
_MOST_BYTES: Final = 4096
_LONGEST_S: Final = 60.0  # of a socket without a timeout
_KNOWS_NOT: Final = "does not know the secret of this run; give both sides the same"


@dataclass(frozen=True, slots=True)
class Identity:
    """One side: its name, its run, the run's secret, and an identifier of this process, which differs after a
    restart.
    """

    peer: str
    run: str
    secret: bytes
    instance: str
    early_bytes: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The authenticated identity of the other side."""

    peer: str
    instance: str
    early_bytes: int
    flow: int
    flows: int


def ask(link: socket.socket, me: Identity, peer: str, flow: int, flows: int) -> Hello:
    """The side that connects. Errors: :class:`Refused` saying by whom and why, ``OSError``."""
    end_s = _end_s(link)
    first = {
        "version": VERSION, "run": me.run, "from": me.peer, "to": peer, "instance": me.instance, "flow": flow,
        "flows": flows, "early": me.early_bytes, "nonce": secrets.token_hex(16),
    }  # fmt: skip
    _put(link, first)
    answer = _get(link, end_s)
    proof = _proof_in(answer)
    why = _unfit(answer, me, f"{peer} at {_where(link)}")
    if not why and answer.get("from") != peer:
        why = f"peer: {_where(link)} is {answer.get('from')!r}, not {peer!r}; correct the address or the name"
    if not why and not hmac.compare_digest(proof, _proof(me, b"listens", first, answer)):
        why = f"secret: {peer} at {_where(link)} {_KNOWS_NOT}"
    if why:
        _put(link, {"refused": why})
        raise Refused(why)
    _put(link, {"proof": _proof(me, b"connects", first, answer).decode()})
    last = _get(link, end_s)
    if "refused" in last:
        raise Refused(f"{peer} at {_where(link)} refuses: {last['refused']}")
    return Hello(peer, str(answer["instance"]), int(answer["early"]), flow, flows)


def answer(link: socket.socket, me: Identity) -> Hello:
    """The side that listens. Errors: as :func:`ask`."""
    end_s = _end_s(link)
    first = _get(link, end_s)
    why = _unfit(first, me, f"{first.get('from')!r} at {_where(link)}")
    if not why and first.get("to") != me.peer:
        why = f"peer: {first.get('from')!r} looks for {first.get('to')!r}, and this is {me.peer!r}; correct the address"
    if why:
        _put(link, {"refused": why})
        raise Refused(why)
    mine = {
        "version": VERSION, "run": me.run, "from": me.peer, "instance": me.instance, "early": me.early_bytes,
        "nonce": secrets.token_hex(16),
    }  # fmt: skip
    _put(link, {**mine, "proof": _proof(me, b"listens", first, mine).decode()})
    second = _get(link, end_s)
    if "refused" in second:
        raise Refused(f"{first.get('from')!r} at {_where(link)} refuses: {second['refused']}")
    if not hmac.compare_digest(_proof_in(second), _proof(me, b"connects", first, mine)):
        why = f"secret: {first.get('from')!r} at {_where(link)} {_KNOWS_NOT}"
        _put(link, {"refused": why})
        raise Refused(why)
    try:
        return Hello(
            str(first["from"]),
            str(first["instance"]),
            int(first["early"]),
            int(first["flow"]),
            int(first["flows"]),
        )
    except (KeyError, TypeError, ValueError):
        raise Refused(f"{_where(link)} sends no greeting of this version") from None


def welcome(link: socket.socket, refused: str = "") -> None:
    """The final message of the listening side: accepted, or the reason for the refusal."""
    _put(link, {"refused": refused} if refused else {"welcome": True})


def _unfit(said: dict[str, Any], me: Identity, who: str) -> str:
    """Why the other side is not one to talk to, before any proof."""
    if "refused" in said:
        return f"{who} refuses: {said['refused']}"
    if said.get("version") != VERSION:
        return (
            f"version: {who} speaks version {said.get('version')}, this is {VERSION}; install the same unidle"
        )
    if said.get("run") != me.run:
        return f"run: {who} is of run {said.get('run')!r}, this is {me.run!r}; two runs on one port: give each its own"
    return ""


def _proof(me: Identity, role: bytes, *said: dict[str, Any]) -> bytes:
    text = json.dumps(said, sort_keys=True).encode()
    return hmac.new(me.secret, role + b"\0" + text, hashlib.sha256).hexdigest().encode()


def _proof_in(said: dict[str, Any]) -> bytes:
    """In bytes: a comparison of texts fails where one is not ASCII."""
    return str(said.pop("proof", "")).encode(errors="replace")


def _put(link: socket.socket, said: dict[str, Any]) -> None:
    text = json.dumps(said).encode()
    link.sendall(_LENGTH.pack(_MAGIC, len(text)) + text)


def _end_s(link: socket.socket) -> float:
    return time.monotonic() + (link.gettimeout() or _LONGEST_S)


def _get(link: socket.socket, end_s: float) -> dict[str, Any]:
    magic, length = _LENGTH.unpack(_exactly(link, _LENGTH.size, end_s))
    if magic != _MAGIC or length > _MOST_BYTES:
        raise Refused(
            f"{_where(link)} does not speak this protocol; check that the port is not another program's, and that TLS is on at both sides or none"
        )
    try:
        found = json.loads(_exactly(link, length, end_s))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(f"{_where(link)} sends no greeting of this protocol")
    return found


def _exactly(link: socket.socket, count: int, end_s: float) -> bytes:
    got = b""
    while len(got) < count:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the greeting took too long")
        link.settimeout(left_s)  # a byte now and then does not hold a thread
        part = link.recv(count - len(got))
        if not part:
            raise ConnectionResetError("closed within the greeting")
        got += part
    return got


def _where(link: socket.socket) -> str:
    try:
        return "{}:{}".format(*link.getpeername()[:2])
    except OSError:
        return "a peer that left"

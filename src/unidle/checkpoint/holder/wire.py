"""Messages between ranks and holders: a JSON object, and bytes where there are any. Addresses and how to reach one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unidle import private
from unidle.checkpoint.holder import handshake, hold_paths
from unidle.checkpoint.holder.hold_paths import directory_id as directory_id
from unidle.checkpoint.holder.hold_paths import hold_base as hold_base
from unidle.checkpoint.holder.hold_paths import hold_directory as hold_directory
from unidle.checkpoint.holder.hold_paths import is_same as is_same
from unidle.checkpoint.holder.listener import is_loopback

Message = dict[str, Any]
_HEAD: Final = struct.Struct("!IQ")
_TEXT_MOST_BYTES: Final = 1 << 26
_ADDRESS_MOST_BYTES: Final = 4096
HOLDERS: Final = "holders"
ADDRESS: Final = "holder.json"
LOOPBACK: Final = "127.0.0.1"
CONNECT_S: Final = 5.0
START_S: Final = 30.0


class Gone(Exception):
    """The other side does not answer (any more)."""


def send(link: socket.socket, message: Message, payload: bytes | bytearray | memoryview = b"") -> None:
    """Raises :class:`Gone`."""
    text = json.dumps(message, separators=(",", ":")).encode()
    try:
        link.sendall(_HEAD.pack(len(text), len(payload)) + text)
        if len(payload):
            link.sendall(payload)
    except OSError as error:
        raise Gone(str(error)) from None


def receive(link: socket.socket) -> tuple[Message, int]:
    """A message, and how many bytes follow it (read them with :func:`receive_into`). Raises :class:`Gone`."""
    head = bytearray(_HEAD.size)
    receive_into(link, memoryview(head))
    length, follows = _HEAD.unpack(head)
    if length > _TEXT_MOST_BYTES:
        raise Gone("the data received are no message")
    text = bytearray(length)
    receive_into(link, memoryview(text))
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise Gone("the data received are no message") from None
    if not isinstance(message, dict):
        raise Gone("the data received are no message")
    return message, int(follows)


def receive_into(link: socket.socket, into: memoryview) -> None:
    """Fill ``into``. Raises :class:`Gone`."""
    at = 0
    try:
        while at < len(into):
            size = link.recv_into(into[at:])
            if not size:
                raise Gone("it closed the connection")
            at += size
    except OSError as error:
        raise Gone(str(error)) from None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a holder listens: for other hosts at ``host`` and ``port``, on this one at the loopback port ``here``.

    ``token`` is what both sides have to have; ``name`` is that of its hold directory.
    """

    host: str
    port: int
    token: str
    name: str
    here: int = 0

    def to_json(self) -> Message:
        return {
            "host": self.host, "port": self.port, "token": self.token, "name": self.name, "here": self.here,
        }  # fmt: skip

    def on_this_host(self) -> Address:
        """The same holder by the loopback address."""
        return replace(self, host=LOOPBACK, port=self.here or self.port)


def address_from(value: Mapping[str, Any]) -> Address:
    return Address(
        str(value["host"]), int(value["port"]), str(value["token"]), str(value["name"]), int(value.get("here", 0))
    )  # fmt: skip


def published(storage: str) -> list[Address]:
    """The holders that have published their addresses in the checkpoint directory; only this user's own files count."""
    found: list[Address | None] = []
    with contextlib.suppress(OSError), hold_paths.inner(storage, HOLDERS) as fd:
        found = [_address_in(name, fd) for name in sorted(os.listdir(fd)) if name.endswith(".json")]
    return [address for address in found if address is not None]


def _address_in(name: str, fd: int) -> Address | None:
    try:
        return address_from(json.loads(private.read(name, fd, _ADDRESS_MOST_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def newest(storage: str, known: Address) -> Address:
    """Where a holder is now: it may have been started again since its address was learnt."""
    return next((address for address in published(storage) if address.name == known.name), known)


def connect(address: Address, timeout_s: float = CONNECT_S) -> socket.socket:
    """A connection to the holder, after each side has proved to the other that it has the token. Raises :class:`Gone`.

    To another host it is encrypted.
    """
    where = f"holder at {address.host}:{address.port}"
    try:
        link = socket.create_connection((address.host, address.port), timeout=timeout_s)
    except OSError as error:
        raise Gone(f"{where}: {error}") from None
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = handshake.ask(link, address.token, address.name, encrypted=not is_loopback(address.host))
        link.settimeout(timeout_s)
    except handshake.PeerRefused as error:
        link.close()
        raise Gone(f"{where} is another one: {error}") from None
    except (OSError, ValueError) as error:
        link.close()
        raise Gone(f"{where}: {error}") from None
    return link


def ask(link: socket.socket, message: Message) -> tuple[Message, int]:
    """Send, and wait for the answer. Raises :class:`Gone`."""
    send(link, message)
    return receive(link)


def own_host(towards: str = "") -> str:
    """The address under which other nodes reach this one: that of the route to ``towards``, or to the job's master."""
    there = towards or os.environ.get("MASTER_ADDR") or LOOPBACK
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((there, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def host_among(hosts: Sequence[str], mine: str) -> str:
    """Where this node's holder listens, of the :func:`own_host` of all ranks: with one of them only, on the loopback address."""
    if len(set(hosts)) == 1:
        return LOOPBACK
    others = [host for host in hosts if not is_loopback(host)]
    return own_host(others[0]) if is_loopback(mine) and others else mine


def running(hold: str, *, coming: bool = False, host: str = "") -> Address | None:
    """The address of the holder that serves ``hold``, if it answers.

    With ``coming`` it stays for the rank that will connect, and listens at ``host`` too. Raises OSError where ``hold`` is
    not this user's own.
    """
    try:
        with hold_paths.held(hold) as fd:
            address = _address_in(ADDRESS, fd)
    except FileNotFoundError:
        return None
    if address is None:
        return None
    try:
        with connect(address.on_this_host()) as link:
            if not coming:
                return address
            answer = ask(link, {"do": "coming", "host": host})[0]
            return address_from(answer["address"]) if answer.get("ok") else None
    except (Gone, KeyError, ValueError, TypeError):
        return None


def environment() -> dict[str, str]:
    """What a holder's environment is: the caller's, and where this package is."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    # not the launcher's own names: what ends "all of this rank" must not find it
    ranks = ("RANK", "LOCAL_RANK", "UNIDLE_RANK", "UNIDLE_RUN_ID")
    own = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC_") and k not in ranks}
    return own | {"PYTHONPATH": path}


def start(storage: str, hold: str, node: str, linger_s: float, host: str = LOOPBACK) -> Address:
    """The holder of ``hold``, started if none runs; other hosts reach it at ``host``.

    Raises :class:`Gone`; OSError where ``hold`` cannot be this user's own.
    """
    found = running(hold, coming=True, host=host)
    if found is not None:
        return found
    command = [
        sys.executable, "-P", "-m", "unidle.checkpoint.holder", "--storage", os.path.abspath(storage), "--hold", hold,
        "--node", node, "--host", host, "--linger", str(linger_s),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True, timeout=START_S, check=False,
    )  # fmt: skip
    end = time.monotonic() + CONNECT_S
    while (found := running(hold, coming=True, host=host)) is None:
        if time.monotonic() > end or done.returncode:
            raise Gone(f"no holder could be started: {done.stderr.strip()[-500:]}")
        time.sleep(0.02)
    return found

"""Messages between ranks and holders: a JSON object, and bytes where there are any. Addresses and how to reach one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from unidle.checkpoint.layout import INNER

Message = dict[str, Any]
_HEAD: Final = struct.Struct("!IQ")
_TEXT_MOST_BYTES: Final = 1 << 28
ADDRESS: Final = "holder.json"
GATE: Final = ".start"
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
    except ValueError:
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
    """Where a holder listens. ``token``: a client sends it first; ``name``: that of the hold directory."""

    host: str
    port: int
    token: str
    name: str

    def to_json(self) -> Message:
        return {"host": self.host, "port": self.port, "token": self.token, "name": self.name}


def address_from(value: Mapping[str, Any]) -> Address:
    return Address(str(value["host"]), int(value["port"]), str(value["token"]), str(value["name"]))


def published(storage: str) -> list[Address]:
    """The holders that have published their addresses in the checkpoint directory."""
    folder = os.path.join(storage, INNER, "holders")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found.append(address_from(json.load(file)))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def newest(storage: str, known: Address) -> Address:
    """Where a holder is now: it may have been started again since its address was learnt."""
    return next((address for address in published(storage) if address.name == known.name), known)


def connect(address: Address, timeout_s: float = CONNECT_S) -> socket.socket:
    """A connection that the holder has accepted. Raises :class:`Gone`."""
    try:
        link = socket.create_connection((address.host, address.port), timeout=timeout_s)
    except OSError as error:
        raise Gone(f"holder at {address.host}:{address.port}: {error}") from None
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send(link, {"token": address.token})
        answer, _ = receive(link)
        if not answer.get("ok"):
            raise Gone(f"holder at {address.host}:{address.port} is another one")
    except (Gone, OSError) as error:
        link.close()
        raise Gone(str(error)) from None
    return link


def ask(link: socket.socket, message: Message) -> tuple[Message, int]:
    """Send, and wait for the answer. Raises :class:`Gone`."""
    send(link, message)
    return receive(link)


def directory_id(storage: str) -> str:
    """The id of a checkpoint directory: another one of the same name has a different id. Made at the first call.

    Raises OSError.
    """
    path = os.path.join(storage, INNER, "id")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        identity = secrets.token_hex(8)
        beside = f"{path}.{identity}.tmp"
        with open(beside, "x", encoding="ascii") as file:
            file.write(identity)
        try:
            os.link(beside, path)  # whole, or not there: another process may look at any moment
        except FileExistsError:
            pass
        except OSError:
            os.replace(beside, path)  # a file system without hard links
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
    with open(path, encoding="ascii") as file:
        return file.read()


def hold_directory(storage: str, node: str, identity: str) -> str:
    """Where a node's copies for one checkpoint directory are: in memory, the same for each restart of the job.

    ``identity`` is that of :func:`directory_id`: who deletes the directory begins from the start, also in memory.
    """
    key = hashlib.sha256(f"{os.path.realpath(storage)}\0{identity}\0{node}".encode()).hexdigest()[:16]
    return os.path.join(hold_base(), f"unidle-hold-{os.getuid()}-{key}")


def hold_base() -> str:
    """Where all copies of this machine are."""
    given = os.environ.get("UNIDLE_HOLD_DIR")
    return given or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def own_host() -> str:
    """The address under which other nodes reach this one: that of the route to the job's master."""
    master = os.environ.get("MASTER_ADDR") or "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def running(hold: str, *, coming: bool = False) -> Address | None:
    """The address of the holder that serves ``hold``, if it answers. ``coming``: it stays for the rank that will connect."""
    try:
        with open(os.path.join(hold, ADDRESS), encoding="utf-8") as file:
            address = address_from(json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        with connect(replace(address, host="127.0.0.1")) as link:
            stays = not coming or bool(ask(link, {"do": "coming"})[0].get("ok"))
    except Gone:
        return None
    return address if stays else None


def gate(hold: str) -> int:
    """The lock without which no holder of ``hold`` begins, or ends; as a descriptor. Raises OSError."""
    path = f"{hold}{GATE}"
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_same(fd, path):
            return fd
        os.close(fd)  # who had it before has removed it


def is_same(fd: int, path: str) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        there, mine = os.stat(path), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def environment() -> dict[str, str]:
    """What a holder's environment is: the caller's, and where this package is."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    # not the launcher's own names: what ends "all of this rank" must not find it
    ranks = ("RANK", "LOCAL_RANK", "UNIDLE_RANK", "UNIDLE_RUN_ID")
    own = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC_") and k not in ranks}
    return own | {"PYTHONPATH": path}


def start(storage: str, hold: str, node: str, linger_s: float) -> Address:
    """The holder of ``hold``, started if none runs. Raises :class:`Gone`."""
    found = running(hold, coming=True)
    if found is not None:
        return found
    command = [
        sys.executable, "-P", "-m", "unidle.checkpoint.holder", "--storage", os.path.abspath(storage), "--hold", hold,
        "--node", node, "--host", own_host(), "--linger", str(linger_s),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True, timeout=START_S, check=False,
    )  # fmt: skip
    end = time.monotonic() + CONNECT_S
    while (found := running(hold, coming=True)) is None:
        if time.monotonic() > end or done.returncode:
            raise Gone(f"no holder could be started: {done.stderr.strip()[-500:]}")
        time.sleep(0.02)
    return found

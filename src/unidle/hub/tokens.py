"""Tokens: what each client may speak for. All come from one secret of the controller's state directory.

An agent's own token speaks for its node, a box's token for one job on one node. The join token is for hosts that the
fleet does not have yet: with it, an agent may name any node that has not joined, and gets its own token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from unidle import atomic, private
from unidle.errors import StoreError
from unidle.hub import frames
from unidle.hub.place import JOIN, READER

if TYPE_CHECKING:
    from unidle.hub.site_certificate import SiteCertificate

_SECRET: Final = "secret"  # noqa: S105 - the name of a file
_NODES: Final = "nodes"
_SECRET_BYTES: Final = 32
_MOST_NODES_BYTES: Final = 64 << 20


class BadToken(Exception):
    """A hello is not allowed. The text and ``remedy`` are for the client."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class Tokens:
    """The tokens of one state directory. ``folder``: a descriptor of STATE/hub, which only this user can enter; it is kept open.

    Which nodes have joined stands in the file ``nodes``, one JSON string a line. Errors: ``private.NotPrivate``
    for files of another user, StoreError for a damaged secret, OSError.
    """

    def __init__(self, folder: int, where: str) -> None:
        self._folder = os.dup(folder)
        self._lock = threading.Lock()  # of the file of names
        try:
            self._secret = _secret(self._folder, where)
            self._joined = _nodes(self._folder)
        except BaseException:
            os.close(self._folder)
            raise
        self.join = self._mac("join")
        self.reader = self._mac("reader")
        self.errors = (
            0  # nodes whose joining could not be written: the join token stays valid for them after a restart
        )

    def write_join(self, authority: str) -> None:
        """The file that an agent joins with. ``authority``: certificates in PEM; empty where the system's are to be used."""
        content = {"token": self.join, "authority": authority}
        with atomic.replaced(JOIN, at=self._folder, durable=True) as file:
            file.write(json.dumps(content).encode() + b"\n")

    def write_reader(
        self, authority: str, addresses: list[tuple[str, int]], site: SiteCertificate | None = None
    ) -> None:
        """The file by which commands of this user read what is on the hosts.

        They dial the address where the hub listens, which a certificate of the site need not name: they trust exactly that one.
        """
        content = {"token": self.reader, "authority": authority, "addresses": addresses}
        if site is not None:
            content |= {"certificate": site.pem, "certificate_file": site.file}
        with atomic.replaced(READER, at=self._folder) as file:
            file.write(json.dumps(content).encode() + b"\n")

    def agent(self, node: str) -> str:
        """The own token of a node's agent."""
        return self._mac("agent", node)

    def box(self, node: str, job: str) -> str:
        """The token of the box of a job on a node."""
        return self._mac("box", node, job)

    def check(self, hello: frames.Hello) -> None:
        """Errors: BadToken unless the token of a hello speaks for what it claims to be."""
        if not hello.node or (hello.kind == "box") != bool(hello.job):
            raise BadToken("a hello names a node, and for a box its job", "update the client")
        if not (hello.node + hello.job).isprintable():
            raise BadToken("a name has characters that cannot be printed", "choose another name with --node")
        if hello.kind == "reader":
            if _same(hello.token, self.reader):
                return
            raise BadToken("the token is not that of a reader", "run the command as the owner of the store")
        own = self.box(hello.node, hello.job) if hello.kind == "box" else self.agent(hello.node)
        if _same(hello.token, own):
            return
        if hello.kind == "agent" and _same(hello.token, self.join):
            if hello.node not in self._joined:
                return
            raise BadToken(
                "a node of this name has joined already, and needs its own token",
                "start the agent with its state directory, or choose another name with --node; of a host that was installed"
                f" again, run `unidle guard forget-host {hello.node}` on the controller",
            )
        raise BadToken(
            f"the token does not speak for this {'node' if hello.kind == 'agent' else 'job on this node'}",
            "join again with the file `join` of the controller's state directory"
            if hello.kind == "agent"
            else "let the agent of the node start the box",
        )

    def joined(self, node: str) -> None:
        """An agent has its own token: the join token is not valid for this name any more."""
        with self._lock:
            self._add(node)

    def _add(self, node: str) -> None:
        if node in self._joined:
            return
        self._joined.add(node)
        try:
            fd = private.open_file(_NODES, self._folder, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.write(fd, json.dumps(node).encode() + b"\n")
            finally:
                os.close(fd)
        except OSError:
            self.errors += 1

    def forget(self, node: str) -> bool:
        """A node left the fleet: another host may join under its name. Its own token stays valid. Whether it had joined.

        Any thread may call this.
        """
        with self._lock:
            if node not in self._joined:
                return False
            self._joined.discard(node)
            try:
                with atomic.replaced(_NODES, at=self._folder) as file:
                    file.writelines(json.dumps(name).encode() + b"\n" for name in sorted(self._joined))
            except OSError:
                self.errors += 1
            return True

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _mac(self, *parts: str) -> str:
        # escaped: a name with the separator in it must not get the token of another pair of names
        escaped = (part.replace("\\", "\\\\").replace("|", "\\|") for part in parts)
        return hmac.new(
            self._secret, "|".join(escaped).encode(errors="surrogatepass"), hashlib.sha256
        ).hexdigest()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _secret(folder: int, where: str) -> bytes:
    """The secret of a state directory, made where it is missing."""
    with suppress(FileNotFoundError):
        secret = private.read(_SECRET, folder, _SECRET_BYTES)
        if len(secret) == _SECRET_BYTES:
            return secret
        raise StoreError(
            "the secret of the hub is damaged",
            field=os.path.join(where, _SECRET),
            remedy="restore it, or remove it and let every host join again",
        )
    with atomic.replaced(_SECRET, at=folder, durable=True) as file:
        file.write(secrets.token_bytes(_SECRET_BYTES))
    os.fsync(folder)
    return private.read(_SECRET, folder, _SECRET_BYTES)


def _nodes(folder: int) -> set[str]:
    """Names of nodes that have joined. A line that a crash tore is left out."""
    try:
        data = private.read(_NODES, folder, _MOST_NODES_BYTES)
    except FileNotFoundError:
        return set()
    names = set()
    for line in data.splitlines():
        with suppress(ValueError):
            name = json.loads(line)
            if isinstance(name, str):
                names.add(name)
    return names

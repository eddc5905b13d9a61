"""What a request proves who it is with: a fixed token or certificate, a token file, or an exec plugin.

The plugins are those of ``client.authentication.k8s.io/v1``: a program that prints an ExecCredential.
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from unidle.errors import BadInput, CannotRun

EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_LOOK_AGAIN_S: Final = 1.0
_PLUGIN_TIMEOUT_S: Final = 60.0
_EARLY_S: Final = 10.0  # a credential that expires so soon is made again


@dataclass(frozen=True, slots=True)
class ClientPair:
    """A client certificate and its key: PEM, or the files that have it."""

    certificate: bytes | Path
    key: bytes | Path


@dataclass(frozen=True, slots=True)
class Credential:
    """One of the two, both, or neither. Its text shows neither."""

    token: str = field(default="", repr=False)
    pair: ClientPair | None = field(default=None, repr=False)


class Credentials(Protocol):
    """Gives the credential of the next request. Used by several threads."""

    def now(self) -> Credential:
        """The one to use. Errors: :class:`unidle.errors.UnidleError` if it cannot be had."""

    def refused(self, credential: Credential) -> bool:
        """The server refused it: whether another one may be had, which the next :meth:`now` gives."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same credential always. Files of a pair are read again for each connection."""

    credential: Credential = Credential()

    def now(self) -> Credential:
        return self.credential

    def refused(self, credential: Credential) -> bool:  # noqa: ARG002
        """No other one."""
        return False


class TokenFile:
    """A token in a file that is replaced from time to time, as the kubelet does with those of service accounts."""

    def __init__(self, path: Path, pair: ClientPair | None = None, token: str = "") -> None:
        self._path, self._pair = path, pair
        self._lock = threading.Lock()
        self._token = token
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = -_LOOK_AGAIN_S

    def now(self) -> Credential:
        """The file's token. Errors: :class:`unidle.errors.BadInput` where it cannot be read and no earlier one is known."""
        with self._lock:
            if time.monotonic() - self._looked_s >= _LOOK_AGAIN_S:
                self._look()
            return Credential(self._token, self._pair)

    def refused(self, credential: Credential) -> bool:
        """Whether the file has another token by now."""
        with self._lock:
            self._seen = None
            self._look()
            return self._token != credential.token

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        try:
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen == self._seen:
                return
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            if self._token:  # it may be about to be replaced
                return
            raise BadInput(
                f"the token file cannot be read: {error}",
                field="tokenFile",
                value=str(self._path),
                remedy="name a file that has the token",
            ) from None
        if token:
            self._token, self._seen = token, seen
        elif not self._token:
            raise BadInput(
                "the token file is empty",
                field="tokenFile",
                value=str(self._path),
                remedy="write the token into it",
            )


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    expiration_timestamp: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class Plugin:
    """How an exec plugin is run. ``cluster``: what it gets to know of the server, where it needs that."""

    api_version: str
    command: str
    args: Sequence[str]
    env: Mapping[str, str]
    install_hint: str = ""
    interactive: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"
    cluster: Mapping[str, Any] | None = None
    folder: Path = Path()  # a relative path of the command starts here


class ExecPlugin:
    """Runs a plugin where its last credential is over or was refused; threads that come meanwhile wait for it."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._lock = threading.Lock()
        self._credential: Credential | None = None
        self._expires_s: float | None = None  # wall clock: the plugin gives a date

    def now(self) -> Credential:
        """Errors: :class:`unidle.errors.CannotRun` where the plugin is not there, fails, or prints something else."""
        with self._lock:
            over = self._expires_s is not None and time.time() > self._expires_s - _EARLY_S
            if self._credential is None or over:
                self._run()
            assert self._credential is not None
            return self._credential

    def refused(self, credential: Credential) -> bool:
        """The plugin is run again, unless another thread did so meanwhile."""
        with self._lock:
            if credential == self._credential:
                self._credential = None
            return True

    def _run(self) -> None:
        printed = run_plugin(self._plugin)
        try:
            found = msgspec.json.decode(printed, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise self._wrong(f"did not print an ExecCredential: {error}") from None
        if found.kind != "ExecCredential" or found.api_version != self._plugin.api_version:
            raise self._wrong(
                f"printed {found.kind or 'no kind'} of {found.api_version or 'no apiVersion'}, "
                f"not ExecCredential of {self._plugin.api_version}"
            )
        status = found.status
        if status is None or not (status.token or status.client_certificate_data):
            raise self._wrong("printed no credential: neither token nor clientCertificateData")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._wrong("printed only one of clientCertificateData and clientKeyData")
        pair = None
        if status.client_certificate_data:
            pair = ClientPair(status.client_certificate_data.encode(), status.client_key_data.encode())
        self._expires_s = self._when(status.expiration_timestamp)
        self._credential = Credential(status.token, pair)

    def _when(self, text: str) -> float | None:
        if not text:
            return None
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise self._wrong(f"printed expirationTimestamp {text!r}, which is no time of RFC 3339") from None

    def _wrong(self, problem: str) -> CannotRun:
        return CannotRun(
            f"the credential plugin {problem}",
            field="exec.command",
            value=self._plugin.command,
            remedy="run it by hand and check what it prints",
        )


def run_plugin(plugin: Plugin) -> bytes:
    """What the plugin prints. Errors: :class:`unidle.errors.CannotRun`; it has what the plugin wrote as its error."""
    path = _program(plugin)
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive == "Always" and not terminal:
        raise CannotRun(
            "the credential plugin needs a terminal, and there is none",
            field="exec.interactiveMode",
            value="Always",
            remedy="log in by hand first, or use credentials that need no terminal",
        )
    interactive = terminal and plugin.interactive != "Never"
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        done = subprocess.run(
            [path, *plugin.args],
            stdin=None if interactive else subprocess.DEVNULL,
            capture_output=True,
            env=env,
            timeout=_PLUGIN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(plugin, str(error)) from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip()[-400:]
        raise _failed(
            plugin, f"exit code {done.returncode}: {last}" if last else f"exit code {done.returncode}"
        )
    return done.stdout


def _program(plugin: Plugin) -> str:
    if os.sep in plugin.command:
        return str(plugin.folder / plugin.command)
    found = shutil.which(plugin.command)
    if found is None:
        raise CannotRun(
            "the credential plugin is not installed",
            field="exec.command",
            value=plugin.command,
            remedy=" ".join(plugin.install_hint.split()) or f"put {plugin.command} on PATH",
        )
    return found


def _failed(plugin: Plugin, why: str) -> CannotRun:
    return CannotRun(
        f"the credential plugin failed: {why}",
        field="exec.command",
        value=plugin.command,
        remedy="run it by hand; its cluster may need you to log in again",
    )


def decoded(data: str) -> bytes:
    """Base64 of a kubeconfig's ``*-data`` field. Errors: ``ValueError``."""
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None

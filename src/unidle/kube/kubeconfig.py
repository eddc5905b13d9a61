"""Which cluster, and as whom: kubeconfig files merged as kubectl merges them, or the address inside a cluster.

Order: ``--kubeconfig``, the files of ``KUBECONFIG``, ``~/.kube/config``, and in a pod its service account. Of several
files the first one that names a cluster, user or context has it whole; relative paths start at the file they are in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from unidle.errors import BadInput
from unidle.files.document import Bounds, Document
from unidle.files.load import read_text, source_name
from unidle.files.tree import parse
from unidle.kube.credentials import (
    EXEC_VERSIONS,
    Credential,
    Credentials,
    ExecPlugin,
    Fixed,
    Pair,
    Plugin,
    TokenFile,
    decoded,
)
from unidle.kube.nulls import without_nulls

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_BOUNDS: Final = Bounds(size_bytes=8 << 20, depth=32, values=200_000)
_WHAT: Final = "kubeconfig"


@dataclass(frozen=True, slots=True)
class Access:
    """One cluster, and one identity there. ``source`` names where it was found, for messages."""

    server: str  # URL, without a slash at its end
    namespace: str = "default"
    source: str = ""
    authority: bytes | Path | None = None  # PEM, or a file of it; None: those of this machine
    insecure: bool = False
    server_name: str = ""  # of the certificate; empty: the host of ``server``
    proxy: str = ""  # http://host:port
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Fixed)


class _Kebab(msgspec.Struct, frozen=True, rename="kebab"):
    """Fields of a kubeconfig. Unknown ones are left alone, as kubectl does."""


class _Cluster(_Kebab, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _EnvVar(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str = ""
    api_version: str = ""
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"


class _User(_Kebab, frozen=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] | None = None
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(_Kebab, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str = ""
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str = ""
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str = ""
    context: _Context | None = None


class _File(_Kebab, frozen=True):
    kind: str = ""
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(frozen=True, slots=True)
class _At:
    """An entry of a file and where it is, for errors and relative paths."""

    document: Document
    path: tuple[str | int, ...]
    folder: Path

    def error(self, key: str, problem: str, *, value: object = None, remedy: str) -> BadInput:
        return self.document.error((*self.path, *key.split(".")), problem, value=value, remedy=remedy)


@dataclass(slots=True)
class _Merged:
    sources: list[str] = field(default_factory=list)
    current: str = ""
    clusters: dict[str, tuple[_Cluster, _At]] = field(default_factory=dict)
    users: dict[str, tuple[_User, _At]] = field(default_factory=dict)
    contexts: dict[str, tuple[_Context, _At]] = field(default_factory=dict)


def load_access(
    kubeconfig: str | os.PathLike[str] | None = None,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The cluster that the options and the environment name. ``service_account``: the directory of a pod's own.

    Errors: :class:`unidle.errors.BadInput` with file, line, field and remedy.
    """
    environ = os.environ if environ is None else environ
    merged = _Merged()
    for path, required in _paths(kubeconfig, environ):
        if required or path.exists():
            _merge(merged, path)
    if not merged.sources:
        return _in_cluster(context, environ, service_account)
    return _chosen(merged, context)


def context_names(
    kubeconfig: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The contexts there are, for completion and errors."""
    merged = _Merged()
    for path, _ in _paths(kubeconfig, os.environ if environ is None else environ):
        if path.exists():
            _merge(merged, path)
    return tuple(sorted(merged.contexts))


def _paths(given: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> list[tuple[Path, bool]]:
    """The files to read, and whether each has to be there."""
    if given is not None:
        return [(Path(given).expanduser(), True)]
    if listed := environ.get("KUBECONFIG", ""):
        paths = list(dict.fromkeys(part for part in listed.split(os.pathsep) if part))
        return [(Path(part), len(paths) == 1) for part in paths]
    home = environ.get("HOME", "")
    return [(Path(home, ".kube", "config"), False)] if home else []


def _merge(merged: _Merged, path: Path) -> None:
    """What the file has and those before it have not."""
    source = source_name(path)
    merged.sources.append(source)
    text = read_text(path, what=_WHAT, limit_bytes=_BOUNDS.size_bytes)
    if not text.strip():
        return
    document = parse(text, source, _WHAT, _BOUNDS)
    file = _converted(document)
    folder = path.absolute().parent
    merged.current = merged.current or file.current_context
    for index, cluster in enumerate(file.clusters or ()):
        at = _At(document, ("clusters", index, "cluster"), folder)
        merged.clusters.setdefault(cluster.name, (cluster.cluster or _Cluster(), at))
    for index, user in enumerate(file.users or ()):
        at = _At(document, ("users", index, "user"), folder)
        merged.users.setdefault(user.name, (user.user or _User(), at))
    for index, context in enumerate(file.contexts or ()):
        at = _At(document, ("contexts", index, "context"), folder)
        merged.contexts.setdefault(context.name, (context.context or _Context(), at))


def _converted(document: Document) -> _File:
    if not isinstance(document.data, dict):
        raise document.error((), "not a mapping of fields", remedy="name a kubeconfig file")
    try:
        file = msgspec.convert(without_nulls(document.data), _File)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at ")
        path = tuple(
            int(index) if index else name for name, index in re.findall(r"\.([\w-]+)|\[(\d+)\]", where)
        )
        raise document.error(
            path, problem.replace("`", "").replace(" | null", ""), remedy="correct the field"
        ) from None
    if file.kind not in ("", "Config"):
        raise document.error(("kind",), "not a kubeconfig", value=file.kind, remedy="name a kubeconfig file")
    return file


def _chosen(merged: _Merged, wanted: str | None) -> Access:
    where = ", ".join(merged.sources)
    name = wanted or merged.current
    known = ", ".join(sorted(merged.contexts)) or "none"
    if not name:
        raise BadInput(
            f"no context is current in {where}",
            field="context",
            remedy=f"give --context; those that there are: {known}",
        )
    if name not in merged.contexts:
        raise BadInput(
            f"there is no such context in {where}",
            field="context" if wanted else "current-context",
            value=name,
            remedy=f"those that there are: {known}",
        )
    context, at = merged.contexts[name]
    if context.cluster not in merged.clusters:
        raise at.error(
            "cluster",
            f"context {name} names a cluster that is not there",
            value=context.cluster,
            remedy=f"those that there are: {', '.join(sorted(merged.clusters)) or 'none'}",
        )
    if context.user and context.user not in merged.users:
        raise at.error(
            "user",
            f"context {name} names a user that is not there",
            value=context.user,
            remedy=f"those that there are: {', '.join(sorted(merged.users)) or 'none'}",
        )
    cluster, cluster_at = merged.clusters[context.cluster]
    user, user_at = merged.users.get(context.user, (_User(), at))
    return _access(f"context {name} of {where}", context.namespace, (cluster, cluster_at), (user, user_at))


def _access(
    source: str, namespace: str, at_cluster: tuple[_Cluster, _At], at_user: tuple[_User, _At]
) -> Access:
    cluster, at = at_cluster
    _check_server(cluster, at)
    authority: bytes | Path | None = None
    if cluster.certificate_authority_data:
        authority = _data(at, "certificate-authority-data", cluster.certificate_authority_data)
    elif cluster.certificate_authority:
        authority = _file(at, "certificate-authority", cluster.certificate_authority)
    if authority is not None and cluster.insecure_skip_tls_verify:
        raise at.error(
            "insecure-skip-tls-verify",
            "an authority is given too, and would not be used",
            value=True,
            remedy="keep one of the two",
        )
    return Access(
        server=cluster.server.rstrip("/"),
        namespace=namespace or "default",
        source=source,
        authority=authority,
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url.rstrip("/"),
        headers=_headers(at_user[0]),
        credentials=_credentials(at_user, cluster, authority),
    )


def _check_server(cluster: _Cluster, at: _At) -> None:
    remedy = "the form is https://host:6443"
    if not cluster.server:
        raise at.error("server", "the field is missing", remedy=remedy)
    _check_url(at, "server", cluster.server, ("https", "http"), remedy)
    if cluster.proxy_url:
        _check_url(
            at,
            "proxy-url",
            cluster.proxy_url,
            ("http",),
            "only proxies of the form http://host:port are supported; for another one use a tunnel",
        )


def _check_url(at: _At, key: str, text: str, schemes: tuple[str, ...], remedy: str) -> None:
    try:
        url = urlsplit(text)
        right = url.scheme in schemes and bool(url.hostname) and (url.port or 1) > 0 and not url.username
    except ValueError:
        right = False
    if not right:
        raise at.error(key, "not an address that can be used", value=text, remedy=remedy)


def _headers(user: _User) -> dict[str, str]:
    headers = {"Impersonate-User": user.as_, "Impersonate-Uid": user.as_uid}
    groups = ",".join(user.as_groups or ())
    return {key: value for key, value in {**headers, "Impersonate-Group": groups}.items() if value}


def _credentials(
    at_user: tuple[_User, _At], cluster: _Cluster, authority: bytes | Path | None
) -> Credentials:
    user, at = at_user
    for key, given in (
        ("auth-provider", user.auth_provider),
        ("username", user.username),
        ("password", user.password),
    ):
        if given:
            raise at.error(
                key,
                "this kind of credential is not supported any more by Kubernetes",
                remedy="use exec, a token or a client certificate",
            )
    if len(user.as_groups or ()) > 1:
        raise at.error("as-groups", "only one group is supported", remedy="keep one")
    pair = _pair(user, at)
    if user.exec is not None:
        if pair is not None or user.token or user.token_file:
            raise at.error(
                "exec",
                "another credential is given too",
                remedy="keep one: exec, or the token or certificate",
            )
        return ExecPlugin(_plugin(user.exec, at, cluster, authority))
    if user.token_file:  # the token counts until the file can be read, as with kubectl
        return TokenFile(at.folder / user.token_file, pair, user.token)
    return Fixed(Credential(user.token, pair))


def _pair(user: _User, at: _At) -> Pair | None:
    found: list[bytes | Path | None] = []
    for key, name, data in (
        ("client-certificate", user.client_certificate, user.client_certificate_data),
        ("client-key", user.client_key, user.client_key_data),
    ):
        if data:
            found.append(_data(at, f"{key}-data", data))
        else:
            found.append(_file(at, key, name) if name else None)
    certificate, key_ = found
    if certificate is None and key_ is None:
        return None
    if certificate is None or key_ is None:
        missing = "client-certificate" if certificate is None else "client-key"
        raise at.error(missing, "the field is missing", remedy=f"add it, or {missing}-data")
    return Pair(certificate, key_)


def _plugin(found: _Exec, at: _At, cluster: _Cluster, authority: bytes | Path | None) -> Plugin:
    if not found.command:
        raise at.error("exec.command", "the field is missing", remedy="name the plugin's program")
    if found.api_version not in EXEC_VERSIONS:
        raise at.error(
            "exec.apiVersion",
            "not a version that is supported",
            value=found.api_version,
            remedy=f"use {EXEC_VERSIONS[0]}",
        )
    known: dict[str, Any] | None = None
    if found.provide_cluster_info:
        import base64

        pem = authority.read_bytes() if isinstance(authority, Path) else authority
        known = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(pem).decode() if pem else "",
            "proxy-url": cluster.proxy_url,
            "config": next(
                (
                    extension.get("extension")
                    for extension in cluster.extensions or ()
                    if extension.get("name") == "client.authentication.k8s.io/exec"
                ),
                None,
            ),
        }
        known = {key: value for key, value in known.items() if value}
    env = {entry.name: entry.value for entry in found.env or ()}
    return Plugin(
        found.api_version,
        found.command,
        found.args or (),
        env,
        found.install_hint,
        found.interactive_mode,
        known,
        at.folder,
    )


def _file(at: _At, key: str, name: str) -> Path:
    path = at.folder / name
    if not path.is_file():
        raise at.error(
            key, "there is no such file", value=str(path), remedy=f"name it right, or give {key}-data"
        )
    return path


def _data(at: _At, key: str, text: str) -> bytes:
    try:
        return decoded(text)
    except ValueError:
        raise at.error(key, "not base64", remedy="give the PEM file in base64, on one line") from None


def _in_cluster(context: str | None, environ: Mapping[str, str], folder: Path) -> Access:
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if context is not None or not host or not (folder / "token").exists():
        raise BadInput(
            "there is no kubeconfig, and this is no pod with a service account",
            field="context" if context is not None else "kubeconfig",
            value=context,
            remedy="give --kubeconfig, or set KUBECONFIG",
        )
    try:
        namespace = (folder / "namespace").read_text(encoding="ascii").strip()
    except OSError:
        namespace = ""
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace or "default",
        source=f"the service account in {folder}",
        authority=folder / "ca.crt",
        credentials=TokenFile(folder / "token"),
    )

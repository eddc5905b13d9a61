"""Which cluster, and as whom: kubeconfig files merged as kubectl merges them, or the address inside a cluster.

Order: ``--kubeconfig``, the files of ``KUBECONFIG``, ``~/.kube/config``, and in a pod its service account. Of several
files the first one that names a cluster, user or context has it whole; relative paths start at the file they are in.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from unidle.errors import BadInput
from unidle.kube.access import ClusterAccess
from unidle.kube.credentials import (
    EXEC_VERSIONS,
    ClientPair,
    Credential,
    Credentials,
    ExecPlugin,
    Fixed,
    Plugin,
    TokenFile,
    decoded,
)
from unidle.kube.kubeconfig_file import At, ClusterEntry, ExecEntry, Merged, UserEntry, merge

IN_CLUSTER: Final = "in-cluster"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_access(
    kubeconfig: str | os.PathLike[str] | None = None,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterAccess:
    """The cluster that the options and the environment name. ``service_account``: the directory of a pod's own.

    Errors: :class:`unidle.errors.BadInput` with file, line, field and remedy.
    """
    environ = os.environ if environ is None else environ
    merged = Merged()
    for path, required in _paths(kubeconfig, environ):
        if required or path.exists():
            merge(merged, path)
    if not merged.sources:
        return _in_cluster(context, environ, service_account)
    return _chosen(merged, context)


def named_access(kubeconfig: str | None, context: str | None) -> ClusterAccess:
    """As :func:`load_access`; :data:`IN_CLUSTER` in place of a file is the account of this pod. Errors: BadInput."""
    if kubeconfig != IN_CLUSTER:
        return load_access(kubeconfig, context)
    named = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    return load_access(environ={name: os.environ[name] for name in named if name in os.environ})


def context_names(
    kubeconfig: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The contexts there are, for completion and errors."""
    merged = Merged()
    for path, _ in _paths(kubeconfig, os.environ if environ is None else environ):
        if path.exists():
            merge(merged, path)
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


def _chosen(merged: Merged, wanted: str | None) -> ClusterAccess:
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
    user, user_at = merged.users.get(context.user, (UserEntry(), at))
    return _access(f"context {name} of {where}", context.namespace, (cluster, cluster_at), (user, user_at))


def _access(
    source: str, namespace: str, at_cluster: tuple[ClusterEntry, At], at_user: tuple[UserEntry, At]
) -> ClusterAccess:
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
    return ClusterAccess(
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


def _check_server(cluster: ClusterEntry, at: At) -> None:
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


def _check_url(at: At, key: str, text: str, schemes: tuple[str, ...], remedy: str) -> None:
    try:
        url = urlsplit(text)
        right = url.scheme in schemes and bool(url.hostname) and (url.port or 1) > 0 and not url.username
    except ValueError:
        right = False
    if not right:
        raise at.error(key, "not an address that can be used", value=text, remedy=remedy)


def _headers(user: UserEntry) -> dict[str, str]:
    headers = {"Impersonate-User": user.as_, "Impersonate-Uid": user.as_uid}
    groups = ",".join(user.as_groups or ())
    return {key: value for key, value in {**headers, "Impersonate-Group": groups}.items() if value}


def _credentials(
    at_user: tuple[UserEntry, At], cluster: ClusterEntry, authority: bytes | Path | None
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


def _pair(user: UserEntry, at: At) -> ClientPair | None:
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
    return ClientPair(certificate, key_)


def _plugin(found: ExecEntry, at: At, cluster: ClusterEntry, authority: bytes | Path | None) -> Plugin:
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


def _file(at: At, key: str, name: str) -> Path:
    path = at.folder / name
    if not path.is_file():
        raise at.error(
            key, "there is no such file", value=str(path), remedy=f"name it right, or give {key}-data"
        )
    return path


def _data(at: At, key: str, text: str) -> bytes:
    try:
        return decoded(text)
    except ValueError:
        raise at.error(key, "not base64", remedy="give the PEM file in base64, on one line") from None


def _in_cluster(context: str | None, environ: Mapping[str, str], folder: Path) -> ClusterAccess:
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
    return ClusterAccess(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace or "default",
        source=f"the service account in {folder}",
        authority=folder / "ca.crt",
        credentials=TokenFile(folder / "token"),
    )

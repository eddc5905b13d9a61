"""A kubeconfig file: its fields, where each stands, and several files merged as kubectl merges them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from unidle.errors import BadInput
from unidle.files.document import Bounds, Document
from unidle.files.load import read_text, source_name
from unidle.files.tree import parse
from unidle.kube.nulls import without_nulls

_BOUNDS: Final = Bounds(size_bytes=8 << 20, depth=32, values=200_000)
_WHAT: Final = "kubeconfig"


class _Kebab(msgspec.Struct, frozen=True, rename="kebab"):
    """Fields of a kubeconfig. Unknown ones are left alone, as kubectl does."""


class ClusterEntry(_Kebab, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class EnvVar(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class ExecEntry(msgspec.Struct, frozen=True, rename="camel"):
    command: str = ""
    api_version: str = ""
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"


class UserEntry(_Kebab, frozen=True):
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
    exec: ExecEntry | None = None
    auth_provider: dict[str, Any] | None = None


class ContextEntry(_Kebab, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str = ""
    cluster: ClusterEntry | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str = ""
    user: UserEntry | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str = ""
    context: ContextEntry | None = None


class _File(_Kebab, frozen=True):
    kind: str = ""
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(frozen=True, slots=True)
class At:
    """An entry of a file and where it is, for errors and relative paths."""

    document: Document
    path: tuple[str | int, ...]
    folder: Path

    def error(self, key: str, problem: str, *, value: object = None, remedy: str) -> BadInput:
        return self.document.error((*self.path, *key.split(".")), problem, value=value, remedy=remedy)


@dataclass(slots=True)
class Merged:
    sources: list[str] = field(default_factory=list)
    current: str = ""
    clusters: dict[str, tuple[ClusterEntry, At]] = field(default_factory=dict)
    users: dict[str, tuple[UserEntry, At]] = field(default_factory=dict)
    contexts: dict[str, tuple[ContextEntry, At]] = field(default_factory=dict)


def merge(merged: Merged, path: Path) -> None:
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
        at = At(document, ("clusters", index, "cluster"), folder)
        merged.clusters.setdefault(cluster.name, (cluster.cluster or ClusterEntry(), at))
    for index, user in enumerate(file.users or ()):
        at = At(document, ("users", index, "user"), folder)
        merged.users.setdefault(user.name, (user.user or UserEntry(), at))
    for index, context in enumerate(file.contexts or ()):
        at = At(document, ("contexts", index, "context"), folder)
        merged.contexts.setdefault(context.name, (context.context or ContextEntry(), at))


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

"""Each kind of write as requests, and which answers mean that it is carried out already.

All of them may be sent again after an answer was lost: a name, a UID or both make the second one change nothing.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, assert_never

import msgspec

from unidle.kube.client import target_of
from unidle.kube.nulls import decoded
from unidle.kube.objects import EVENTS, PODS, AnyObject, ObjectKind, Pod
from unidle.kube.protocol import (
    ApiRequest,
    Bind,
    Create,
    Delete,
    Emit,
    Evict,
    Json,
    KubeError,
    Patch,
    Write,
    WriteDone,
)

Call = Callable[[ApiRequest], bytes]
_PATCHES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_NOTE_BYTES: Final = 1024  # the server takes no longer note
_EMIT_TRIES: Final = 5
_CONTROLLER: Final = "unidle.dev/controller"


def lane_of(write: Write) -> tuple[str, str, str]:
    """Kind, namespace and name of the object: writes to one object go one after the other."""
    match write:
        case Create(kind, body):
            metadata = body.get("metadata", {})
            return str(kind), str(metadata.get("namespace", "")), str(metadata.get("name", ""))
        case Delete(kind, namespace, name) | Patch(kind, namespace, name):
            return str(kind), namespace, name
        case Bind(namespace, name) | Evict(namespace, name):
            return str(PODS), namespace, name
        case Emit():
            return str(EVENTS), *_event_name(write)
        case _:
            assert_never(write)


def carry_out(write: Write, call: Call) -> WriteDone:
    """Send it. Errors: :class:`KubeError`; :func:`passes` is whether the same write may succeed later."""
    match write:
        case Create():
            return _create(write, call)
        case Delete():
            return _delete(write, call)
        case Patch():
            return _patch(write, call)
        case Bind():
            return _bind(write, call)
        case Evict():
            return _evict(write, call)
        case Emit():
            return _emit(write, call)
        case _:
            assert_never(write)


def passes(write: Write, error: KubeError, tries: int) -> bool:
    """Whether to try again."""
    if isinstance(write, Emit) and tries >= _EMIT_TRIES:
        return False
    return error.may_pass or error.reason == _MEANWHILE


def of_one_object(error: KubeError) -> bool:
    """Whether the error is about the object, so that writes to others are as good as before."""
    return error.reason == _MEANWHILE or any(reason == "DisruptionBudget" for reason, _, _ in error.causes)


_MEANWHILE: Final = "ChangedMeanwhile"


def _meanwhile(error: KubeError) -> KubeError:
    """Two writes met in the server, or the object changed between two requests: the same again."""
    return KubeError(
        error.problem, verb=error.verb, target=error.target, status=error.status, reason=_MEANWHILE
    )


def _create(write: Create, call: Call) -> WriteDone:
    _, namespace, name = lane_of(write)
    path = write.kind.path(namespace)
    request = ApiRequest(
        "create", "POST", path, target_of(write.kind, namespace, name), body=msgspec.json.encode(write.body)
    )
    try:
        return WriteDone(write, body=call(request))
    except KubeError as error:
        if error.reason == "Conflict":  # of a quota's own object
            raise _meanwhile(error) from None
        if error.reason != "AlreadyExists":
            raise
        refused = error
    body = _existing(write.kind, namespace, name, call)
    if body is None:
        raise _meanwhile(refused)
    if not _is_ours(write.body, decoded(body, AnyObject)):
        raise refused
    return WriteDone(write, existing=True, body=body)


def _is_ours(wanted: Json, found: AnyObject) -> bool:
    metadata: Mapping[str, Any] = wanted.get("metadata", {})
    labels: Mapping[str, str] = metadata.get("labels", {})
    owners = {owner["uid"] for owner in metadata.get("ownerReferences", ())}
    has = found.metadata
    return (
        bool(labels or owners)
        and labels.items() <= has.labels.items()
        and owners <= {owner.uid for owner in has.owner_references}
    )


def _delete(write: Delete, call: Call) -> WriteDone:
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": write.propagation,
        **_options(write.uid, write.grace_s),
    }
    request = ApiRequest(
        "delete",
        "DELETE",
        write.kind.path(write.namespace, write.name),
        target_of(write.kind, write.namespace, write.name),
        body=msgspec.json.encode(options),
    )
    try:
        return WriteDone(write, body=call(request))
    except KubeError as error:
        return _gone_or_raise(write, write.kind, error, call)


def _options(uid: str, grace_s: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
    return options if grace_s is None else {**options, "gracePeriodSeconds": grace_s}


def _gone_or_raise(write: Delete | Evict, kind: ObjectKind[Any], error: KubeError, call: Call) -> WriteDone:
    """A success if the object of that UID is there no more."""
    if error.reason == "NotFound":
        return WriteDone(write, existing=True)
    if error.reason == "Conflict":
        body = _existing(kind, write.namespace, write.name, call)
        if body is None or (write.uid and decoded(body, AnyObject).metadata.uid != write.uid):
            return WriteDone(write, existing=True)
        raise _meanwhile(error)
    raise error


def _patch(write: Patch, call: Call) -> WriteDone:
    body: Any = write.body
    query: dict[str, str] = {"fieldManager": write.manager}
    if write.manner == "apply":
        query["force"] = "true" if write.force else "false"
    if write.manner == "json":
        test = [{"op": "test", "path": "/metadata/uid", "value": write.uid}] if write.uid else []
        body = [*test, *write.body["ops"]]
    elif write.uid:
        body = {**body, "metadata": {**body.get("metadata", {}), "uid": write.uid}}
    request = ApiRequest(
        "patch",
        "PATCH",
        write.kind.path(write.namespace, write.name, write.sub),
        target_of(write.kind, write.namespace, write.name),
        query,
        msgspec.json.encode(body),
        _PATCHES[write.manner],
    )
    try:
        return WriteDone(write, body=call(request))
    except KubeError as error:
        raise _of_patch(write, error, call) from None


def _of_patch(write: Patch, error: KubeError, call: Call) -> KubeError:
    if write.uid and error.reason == "Invalid" and _is_another(write, call):
        return KubeError(
            "it is another object of the same name by now",
            verb=error.verb,
            target=error.target,
            status=409,
            reason="Conflict",
            remedy="read it again",
        )
    metadata = write.body.get("metadata", {}) if write.manner != "json" else {}
    ours = write.uid or "resourceVersion" in metadata or write.manner == "apply"
    return _meanwhile(error) if error.reason == "Conflict" and not ours else error


def _is_another(write: Patch, call: Call) -> bool:
    body = _existing(write.kind, write.namespace, write.name, call)
    return body is not None and decoded(body, AnyObject).metadata.uid != write.uid


def _bind(write: Bind, call: Call) -> WriteDone:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": write.name, "namespace": write.namespace, "uid": write.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": write.node},
    }
    request = ApiRequest(
        "create",
        "POST",
        PODS.path(write.namespace, write.name, "binding"),
        f"pods/binding {write.namespace}/{write.name}",
        body=msgspec.json.encode(binding),
    )
    try:
        return WriteDone(write, body=call(request))
    except KubeError as error:
        if error.reason != "Conflict":
            raise
        refused = error
    body = _existing(PODS, write.namespace, write.name, call)
    if body is not None:
        pod = decoded(body, Pod)
        if pod.metadata.uid == write.uid and pod.spec.node_name == write.node:
            return WriteDone(write, existing=True)
        if pod.metadata.uid == write.uid and not pod.spec.node_name and not pod.metadata.deletion_timestamp:
            raise _meanwhile(refused)
    raise refused


def _evict(write: Evict, call: Call) -> WriteDone:
    # with the UID of another pod the server tries again for longer than any time-out, before it refuses
    body = _existing(PODS, write.namespace, write.name, call)
    if body is None or (write.uid and decoded(body, AnyObject).metadata.uid != write.uid):
        return WriteDone(write, existing=True)
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": write.name, "namespace": write.namespace},
        "deleteOptions": _options(write.uid, write.grace_s),
    }
    request = ApiRequest(
        "create",
        "POST",
        PODS.path(write.namespace, write.name, "eviction"),
        f"pods/eviction {write.namespace}/{write.name}",
        body=msgspec.json.encode(eviction),
    )
    try:
        return WriteDone(write, body=call(request))
    except KubeError as error:
        return _gone_or_raise(write, PODS, error, call)


def _event_name(write: Emit) -> tuple[str, str]:
    """Namespace and name of the Event: made of its key, so that it is made once."""
    about = write.about
    digest = hashlib.sha256(f"{about.get('uid', '')}\0{write.reason}\0{write.key}".encode()).hexdigest()[:16]
    return str(about.get("namespace") or "default"), f"{str(about['name'])[:200]}.{digest}"


def _emit(write: Emit, call: Call) -> WriteDone:
    namespace, name = _event_name(write)
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": _CONTROLLER,
        "reportingInstance": socket.gethostname()[:128],
        "action": write.action,
        "reason": write.reason,
        "note": write.note.encode()[:_NOTE_BYTES].decode(errors="ignore"),
        "type": "Warning" if write.warning else "Normal",
        "regarding": dict(write.about),
    }
    request = ApiRequest(
        "create",
        "POST",
        EVENTS.path(namespace),
        target_of(EVENTS, namespace, name),
        body=msgspec.json.encode(event),
    )
    try:
        return WriteDone(write, body=call(request))
    except KubeError as error:
        if error.reason == "AlreadyExists":
            return WriteDone(write, existing=True)
        raise


def _existing(kind: ObjectKind[Any], namespace: str, name: str, call: Call) -> bytes | None:
    """The object of that name as JSON, if there is one."""
    try:
        return call(ApiRequest("get", "GET", kind.path(namespace, name), target_of(kind, namespace, name)))
    except KubeError as error:
        if error.reason == "NotFound":
            return None
        raise

"""Whose a ticket is, and what its owner may do: both by the word of the API server, remembered for some seconds."""

from __future__ import annotations

import base64
import hmac
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from unidle.kube.commands import CSR_PATH, SIGNER, TICKET_S, hash_of
from unidle.kube.protocol import ApiRequest, Client, KubeError

REVIEWS_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
GROUP: Final = "unidle.dev"
_NAME: Final = re.compile(r"unidle-[0-9a-f]{16}")
_TICKET_KEPT_S: Final = 30.0
_RIGHT_KEPT_S: Final = 5.0
_SKEW_S: Final = 300.0  # of this host's clock to that of the API server
_MOST_KEPT: Final = 2000
_TIMEOUT_S: Final = 10.0


class CallForbidden(Exception):
    """``kind`` is the word for the client; the text is the reason. ``remedy``: what the user does about it."""

    def __init__(self, kind: str, why: str, remedy: str = "") -> None:
        self.kind, self.remedy = kind, remedy
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class User:
    """A user of the cluster, as the API server has them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Right:
    """One right by RBAC; ``resource`` may have a subresource after a slash."""

    verb: str
    resource: str = "jobs"
    group: str = GROUP
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


class Identities:
    """For several threads. ``namespace``: of the jobs. ``client`` is not closed here."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self.namespace = client, namespace
        self._lock = threading.Lock()
        self._tickets: OrderedDict[str, tuple[User, str, float]] = OrderedDict()
        self._rights: OrderedDict[tuple[str, tuple[str, ...], Right], tuple[str, float]] = OrderedDict()

    def user(self, name: str, secret: str) -> User:
        """Whose ticket it is. Errors: CallForbidden; KubeError where the API server does not answer."""
        if not _NAME.fullmatch(name):
            raise _no_ticket("it has no name of a ticket")
        with self._lock:
            user, wanted, until_s = self._tickets.get(name, (User(""), "", 0.0))
        if until_s < time.monotonic():
            user, wanted = self._read(name)
            with self._lock:
                self._tickets[name] = (user, wanted, time.monotonic() + _TICKET_KEPT_S)
                self._tickets.move_to_end(name)
                while len(self._tickets) > _MOST_KEPT:
                    self._tickets.popitem(last=False)
        if not hmac.compare_digest(wanted, hash_of(secret)):
            raise _no_ticket("its secret is another one")
        return user

    def need(self, user: User, *rights: Right) -> None:
        """Errors: CallForbidden, with the first right that is missing; KubeError."""
        for right in rights:
            key = (user.name, user.groups, right)
            with self._lock:
                why, until_s = self._rights.get(key, ("", 0.0))
            if until_s < time.monotonic():
                why = self._reviewed(user, right)
                with self._lock:
                    self._rights[key] = (why, time.monotonic() + _RIGHT_KEPT_S)
                    self._rights.move_to_end(key)
                    while len(self._rights) > _MOST_KEPT:
                        self._rights.popitem(last=False)
            if why:
                raise CallForbidden("Forbidden", why, self._remedy(right))

    def _remedy(self, right: Right) -> str:
        within = f" in namespace {self.namespace}" if right.namespaced else ""
        return f"have `{right}` granted to you{within}, such as by the ClusterRole unidle-user or unidle-operator"

    def _read(self, name: str) -> tuple[User, str]:
        """The creator of a ticket's object, and the hash in it."""
        request = ApiRequest(
            "get", "GET", f"{CSR_PATH}/{name}", f"certificatesigningrequests.certificates.k8s.io {name}"
        )
        try:
            found = msgspec.json.decode(self._client.call(request, _TIMEOUT_S))
        except KubeError as error:
            if error.reason == "NotFound":
                raise _no_ticket("its object is gone") from None
            raise
        spec = found.get("spec") or {}
        if spec.get("signerName") != SIGNER:
            raise _no_ticket("its object is for another signer")
        conditions = (found.get("status") or {}).get("conditions") or ()
        if any(one.get("type") in ("Denied", "Failed") for one in conditions):
            raise _no_ticket("it was denied")
        created_s = datetime.fromisoformat(found["metadata"]["creationTimestamp"]).timestamp()
        if time.time() - created_s > TICKET_S + _SKEW_S:
            raise _no_ticket("it is over")
        extra = {str(key): tuple(values) for key, values in (spec.get("extra") or {}).items()}
        user = User(
            str(spec.get("username", "")), str(spec.get("uid", "")), tuple(spec.get("groups") or ()), extra
        )
        if not user.name:
            raise _no_ticket("its object names no creator")
        return user, _common_name(str(spec.get("request", "")))

    def _reviewed(self, user: User, right: Right) -> str:
        """Why the user may not, empty where they may."""
        resource, _, sub = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": sub}
        if right.namespaced:
            attributes["namespace"] = self.namespace
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": attributes,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        request = ApiRequest(
            "create", "POST", REVIEWS_PATH, "subjectaccessreviews.authorization.k8s.io", body=msgspec.json.encode(body)
        )  # fmt: skip
        answer = msgspec.json.decode(self._client.call(request, _TIMEOUT_S))
        status: Mapping[str, Any] = answer.get("status") or {}
        if status.get("allowed") is True and not status.get("denied"):
            return ""
        within = f" in namespace {self.namespace}" if right.namespaced else ""
        return f"user {user.name} may not {right}{within}"


def _no_ticket(why: str) -> CallForbidden:
    from unidle.kube.commands import NO_TICKET

    return CallForbidden(NO_TICKET, f"the ticket is not good: {why}", "try again")


def _common_name(request: str) -> str:
    """The subject of a certificate request: base64 of PEM."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_csr(base64.b64decode(request))
        names = found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return str(names[0].value)
    except (ValueError, IndexError):
        raise _no_ticket("its object cannot be read") from None

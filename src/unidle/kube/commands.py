"""How a command reaches the controller of a cluster: through the API server, and with a ticket instead of credentials.

The API server passes requests on to the controller's Service, without saying whose they are. So the command first creates a
CertificateSigningRequest, in which the API server itself writes who created it. Its subject has the hash of a secret that
only the command has: name and secret together are the ticket. The controller reads the object, and the API server has what
its creator may do. No credential of the user leaves for the controller, and nothing is ever signed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from unidle import atomic, private
from unidle.errors import BadInput, CannotRun, ConnectionLost, StoreDamaged, StoreError, UnidleError
from unidle.kube.client import ApiClient, open_client
from unidle.kube.kubeconfig import named_access
from unidle.kube.protocol import ApiRequest, KubeError

SIGNER: Final = "unidle.dev/commands"
CSR_PATH: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TICKET_S: Final = 8 * 3600.0
"""How long a ticket is good after its object was created. The cluster deletes the object within a day."""
SERVICE: Final = "unidle-system/unidle"
PORT: Final = "commands"
VERSION: Final = 1
NO_TICKET: Final = "NoTicket"
"""The kind of the error for a ticket that is not good: a new one may be."""
STANDBY: Final = "Standby"
"""The kind of the error of a controller that does not serve the store now: another one does, or will within seconds."""
_STANDBY_S: Final = 20.0
_AGAIN_S: Final = 0.1
_EARLIER_S: Final = 300.0
_TIMEOUT_S: Final = 60.0
_TRIES: Final = 5
"""Of one call. The API server now and then cuts an answer short that comes fast (golang/go#40747)."""
_ERRORS: Final[dict[str, type[UnidleError]]] = {
    kind.__name__: kind for kind in (BadInput, CannotRun, ConnectionLost, StoreDamaged, StoreError)
}


class CommandTicket(NamedTuple):
    """``name`` of the object, and what its hash is in it. ``until_s``: seconds since the epoch."""

    name: str
    secret: str
    until_s: float


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """Which controller: ``service`` is ``NAMESPACE/NAME``. ``kubeconfig`` and ``context`` None: as kubectl finds them."""

    kubeconfig: str | None = None
    context: str | None = None
    service: str = SERVICE


class CallFailed(UnidleError):
    """The controller refused a call: ``kind`` is its word."""

    exit_code = 4

    def __init__(self, kind: str, problem: str, **more: Any) -> None:
        self.kind = kind
        super().__init__(problem, **more)


class CommandCalls:
    """Calls of one controller. For one thread at a time. ``cache``: the directory that tickets are kept in.

    Errors of :meth:`call`: those of the controller; :class:`KubeError` where the API server does not pass the call on.
    """

    def __init__(self, target: CommandTarget, cache: Path | None = None) -> None:
        access = named_access(target.kubeconfig, target.context)
        namespace, slash, name = target.service.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise BadInput(
                "is not the name of a Service", field="service", value=target.service, remedy="NAMESPACE/NAME"
            )
        self.client: ApiClient = open_client(access, timeout_s=_TIMEOUT_S, agent="unidle")
        self._service = target.service
        self._path = f"/api/v1/namespaces/{namespace}/services/https:{name}:{PORT}/proxy/v1"
        self._cache = cache or _cache_dir()
        self._file = hashlib.sha256(
            f"{access.server}\0{access.source}\0{target.service}".encode()
        ).hexdigest()[:24]
        self._ticket: CommandTicket | None = None

    def call(self, what: str, **more: Any) -> Any:
        """The value that the controller returns."""
        fresh = self._ticket is None
        if self._ticket is None:
            self._ticket = self._kept() or self._new()
        try:
            return self._sent(self._ticket, what, more)
        except CallFailed as error:
            if error.kind != NO_TICKET or not fresh:
                raise
        self._ticket = self._new()  # that of the cache was withdrawn
        return self._sent(self._ticket, what, more)

    def close(self) -> None:
        self.client.close()

    def _sent(self, ticket: CommandTicket, what: str, more: Mapping[str, Any]) -> Any:
        """Several controllers stand behind one Service: the API server takes any of them, so the call is sent until one serves."""
        end_s = time.monotonic() + _STANDBY_S
        while True:
            try:
                return self._sent_once(ticket, what, more)
            except CallFailed as error:
                if error.kind != STANDBY or time.monotonic() > end_s:
                    raise
                time.sleep(_AGAIN_S)

    def _sent_once(self, ticket: CommandTicket, what: str, more: Mapping[str, Any]) -> Any:
        # by its id the controller carries out only once what changes something
        told = {"v": VERSION, "id": secrets.token_hex(8), "ticket": ticket.name, "secret": ticket.secret}
        body = msgspec.msgpack.encode({**told, "call": what, "with": more})
        request = ApiRequest(
            "create", "POST", self._path, f"services/proxy {self._service}", body=body,
            content_type="application/msgpack",
        )  # fmt: skip
        try:
            answer = msgspec.msgpack.decode(self._whole(request))
        except msgspec.DecodeError:
            raise CannotRun(
                "what answers is no controller of unidle", field=f"service {self._service}",
                remedy="name the Service of `unidle up --commands`: UNIDLE_KUBE_SERVICE=NAMESPACE/NAME",
            ) from None  # fmt: skip
        except KubeError as error:
            raise self._explained(error) from None
        if (error_told := answer.get("error")) is not None:
            raise _error_of(error_told)
        return answer.get("value")

    def _whole(self, request: ApiRequest) -> bytes:
        """The answer, sent for again where it was cut short."""
        for _ in range(_TRIES - 1):
            try:
                return self.client.call(request, _TIMEOUT_S)
            except KubeError as error:
                if error.reason != "CutShort":
                    raise
        return self.client.call(request, _TIMEOUT_S)

    def _explained(self, error: KubeError) -> KubeError:
        """The API server's refusal, with what to do about it."""
        if error.reason in ("NotFound", "ServiceUnavailable"):
            within = self._service.partition("/")[0]
            remedy = (
                f"see whether its pod is ready (kubectl get pods -n {within}), install unidle (`unidle kube install`), or "
                "name another Service: UNIDLE_KUBE_SERVICE=NAMESPACE/NAME"
            )
        elif error.reason == "Forbidden":
            remedy = "have the ClusterRole unidle-user bound to you"
        else:
            return error
        return KubeError(
            error.problem, verb=error.verb, target=error.target, status=error.status, reason=error.reason, remedy=remedy
        )  # fmt: skip

    def _kept(self) -> CommandTicket | None:
        """The ticket of an earlier command, while it is good for some minutes."""
        try:
            folder = private.open_folder(str(self._cache))
            try:
                found = CommandTicket(*json.loads(private.read(self._file, folder, 4096)))
            finally:
                os.close(folder)
        except (OSError, ValueError, TypeError, UnidleError):
            return None
        return found if found.until_s - _EARLIER_S > time.time() else None

    def _new(self) -> CommandTicket:
        """Errors: KubeError; CannotRun without ``cryptography``."""
        secret, name = secrets.token_hex(32), f"unidle-{secrets.token_hex(8)}"
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": b64encode(_signing_request(hash_of(secret))).decode(),
                "signerName": SIGNER,
                "usages": ["client auth"],
                "expirationSeconds": int(TICKET_S),
            },
        }
        request = ApiRequest(
            "create", "POST", CSR_PATH, "certificatesigningrequests.certificates.k8s.io",
            body=msgspec.json.encode(body),
        )  # fmt: skip
        try:
            self.client.call(request)
        except KubeError as error:
            raise self._explained(error) from None
        ticket = CommandTicket(name, secret, time.time() + TICKET_S)
        self._keep(ticket)
        return ticket

    def _keep(self, ticket: CommandTicket) -> None:
        """A ticket that cannot be kept serves this command all the same."""
        try:
            self._cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = private.open_folder(str(self._cache), create=True, private=True)
            try:
                with atomic.replaced(self._file, at=folder) as file:
                    file.write(json.dumps(ticket).encode())
            finally:
                os.close(folder)
        except (OSError, UnidleError):
            pass


def hash_of(secret: str) -> str:
    """What the object of a ticket has in its subject."""
    return hashlib.sha256(f"unidle ticket {secret}".encode()).hexdigest()


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "unidle" / "tickets"


def _signing_request(common_name: str) -> bytes:
    """A certificate request in PEM, by a key that is not kept."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding
    except ImportError:
        raise CannotRun(
            "commands on a cluster need the package cryptography", remedy="pip install 'unidle[hosts]'"
        ) from None
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return made.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM)


def _error_of(told: Mapping[str, Any]) -> UnidleError:
    more = {name: told.get(name) for name in ("field", "value", "remedy")}
    kind, problem = str(told.get("kind", "")), str(told.get("problem", ""))
    if (found := _ERRORS.get(kind)) is not None:
        return found(problem, **more)
    return CallFailed(kind, problem, **more)

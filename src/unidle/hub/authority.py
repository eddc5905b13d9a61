"""The certificate that the hub shows: of its own authority, made at the first start, or the site's.

Own: STATE/hub has ``ca.pem`` and ``ca.key`` (ten years), ``server.pem`` and ``server.key`` (90 days, made again 30 days
before their end, or when the names change). Keys are P-256: a handshake takes 0.25 ms. Times are of the wall clock,
as those of certificates are.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Protocol

from unidle import atomic, private
from unidle.errors import BadInput, CannotRun, StoreError
from unidle.hub.site_certificate import SiteCertificate, first_certificate, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SERVER_NAME: Final = "unidle-hub"
"""Always one of the names of an own certificate: a client behind another name of the host can ask for this one."""
AUTHORITY_NAME: Final = "unidle hub authority"
_AUTHORITY_DAYS: Final = 3650
_SERVER_DAYS: Final = 90
_RENEW_DAYS: Final = 30
_SKEW: Final = timedelta(days=1)  # a host's clock may be behind that of the controller
_SINCE: Final = datetime(
    2026, 1, 1, tzinfo=UTC
)  # the authority is valid since then, whatever this host's clock shows
_MOST_BYTES: Final = 1 << 20
_LOOK_AGAIN_S: Final = 60.0


class ServerIdentity(Protocol):
    """What a server shows, and what its clients verify it with."""

    @property
    def authority(self) -> str:
        """Certificates in PEM; empty where clients use those of their system."""
        ...

    def context(self, now_s: float) -> ssl.SSLContext:
        """For connections that are accepted now (seconds since the epoch)."""
        ...

    @property
    def site(self) -> SiteCertificate | None:
        """The site's certificate, if that is shown."""
        ...

    def follow(self, loaded: Callable[[], None]) -> None:
        """Call ``loaded`` whenever another certificate of the site is shown from now on."""
        ...

    def close(self) -> None: ...


class OwnIdentity:
    """A certificate by the hub's own authority. ``folder``: a descriptor of STATE/hub, kept open; ``where``: its path.

    ``names``: host names and addresses. Errors: CannotRun without the package ``cryptography``,
    ``private.NotPrivate`` for files of another user, StoreError for damaged ones, OSError.
    """

    def __init__(self, folder: int, where: str, names: Sequence[str], now_s: float) -> None:
        _need_cryptography()
        self._folder, self._where = os.dup(folder), where
        self._names = tuple(dict.fromkeys([*names, SERVER_NAME]))
        self.renewals = 0
        self.errors = 0
        try:
            self.authority = _authority(self._folder, where, now_s).pem
            self._renew_s = self._renewed(now_s)
            self._context = self._load()
        except BaseException:
            self.close()
            raise
        self._looked_s = now_s

    def context(self, now_s: float) -> ssl.SSLContext:
        """The newest; a certificate near its end is made again. Where that fails, the old one is used on."""
        if abs(now_s - self._looked_s) >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            if now_s >= self._renew_s:
                try:
                    self._renew_s = self._renewed(now_s)
                    self._context = self._load()
                except (OSError, StoreError, ValueError):
                    self.errors += 1
        return self._context

    @property
    def site(self) -> SiteCertificate | None:
        return None

    def follow(self, loaded: Callable[[], None]) -> None:
        """Its certificates are all verified with the same authority."""

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _renewed(self, now_s: float) -> float:
        """When the certificate has to be made again; it is made now, if that is not in the future."""
        authority = _authority(self._folder, self._where, now_s)
        renew_s = _renew_at(self._folder, authority, self._names, now_s)
        if renew_s > now_s:
            return renew_s
        key, pem = _server_certificate(authority, self._names, now_s)
        # the key first: after a crash between the two the certificate does not fit it, and both are made again
        _write(self._folder, "server.key", key)
        _write(self._folder, "server.pem", pem)
        self.renewals += 1
        return _renew_at(self._folder, authority, self._names, now_s)

    def _load(self) -> ssl.SSLContext:
        # by path: only this user can write in the directory, as was verified
        return server_context(
            os.path.join(self._where, "server.pem"), os.path.join(self._where, "server.key")
        )


class SiteIdentity:
    """The site's certificate and key, from files; loaded again when they are replaced.

    ``authority_file``: certificates that clients verify it with; without one, those of their system. Errors: BadInput.
    """

    def __init__(self, certificate: str, key: str, authority_file: str | None = None) -> None:
        self._files = (os.path.abspath(certificate), os.path.abspath(key))
        self._loaded: Callable[[], None] = _unfollowed
        self.authority = _authority_text(authority_file) if authority_file else ""
        self.errors = 0
        self._state = self._stat()
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise BadInput(
                f"the certificate or its key cannot be used: {error}",
                value=f"{certificate}, {key}",
                remedy="name a certificate in PEM and the key that belongs to it",
            ) from None
        self._looked_s = 0.0

    def context(self, now_s: float) -> ssl.SSLContext:
        if abs(now_s - self._looked_s) >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            if (state := self._stat()) != self._state:
                self._state = state
                try:
                    self._load()
                    self._loaded()
                except (OSError, ValueError):
                    self.errors += 1
        return self._context

    @property
    def site(self) -> SiteCertificate | None:
        return self._site

    def follow(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded

    def close(self) -> None:
        pass

    def _load(self) -> None:
        """Errors: OSError (also for what TLS cannot use), ValueError."""
        self._context = server_context(*self._files)
        with open(self._files[0], "rb") as file:
            pem = first_certificate(file.read(_MOST_BYTES).decode("ascii", "replace"))
        self._site = SiteCertificate(pem, self._files[0], names_in(pem))

    def _stat(self) -> list[tuple[int, int]]:
        try:
            return [(s.st_ino, s.st_mtime_ns) for s in map(os.stat, self._files)]
        except OSError:
            return []


def _unfollowed() -> None:
    """Until :meth:`SiteIdentity.follow`."""


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 without client certificates and without tickets (2 KB and two signatures less for each connection)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # "": without it OpenSSL would ask the terminal for the password of a key, and the controller would wait
    context.load_cert_chain(certificate, key, password="")
    return context


@dataclass(frozen=True, slots=True)
class _Authority:
    key: EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate
    pem: str


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise CannotRun(
            "a certificate authority of its own needs the package cryptography",
            remedy="pip install 'unidle[hosts]', or give the site's certificate, key and authority as files",
        ) from None


def _authority(folder: int, where: str, now_s: float) -> _Authority:
    """The authority of a state directory, made where it is missing."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    try:
        pem, key_pem = (
            private.read("ca.pem", folder, _MOST_BYTES),
            private.read("ca.key", folder, _MOST_BYTES),
        )
    except FileNotFoundError:
        _make_authority(folder, where, now_s)
        pem, key_pem = (
            private.read("ca.pem", folder, _MOST_BYTES),
            private.read("ca.key", folder, _MOST_BYTES),
        )
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise _damaged(where, str(error)) from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise _damaged(where, "ca.key does not belong to ca.pem")
    return _Authority(key, certificate, pem.decode())


def _damaged(where: str, why: str) -> StoreError:
    return StoreError(
        f"the certificate authority of the hub is damaged: {why}",
        field=os.path.join(where, "ca.pem"),
        remedy="restore ca.pem and ca.key, or remove both and let every host join again",
    )


def _make_authority(folder: int, where: str, now_s: float) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if os.access("ca.pem", os.F_OK, dir_fd=folder):
        raise _damaged(where, "ca.key is missing")
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)  # signs certificates
    ends = max(datetime.fromtimestamp(now_s, UTC), _SINCE) + timedelta(days=_AUTHORITY_DAYS)
    certificate = (
        _builder(AUTHORITY_NAME, key, _SINCE, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    # the key first: a certificate without its key is an error, a key without its certificate is made again
    _write(folder, "ca.key", _key_pem(key))
    _write(folder, "ca.pem", _certificate_pem(certificate))


def _server_certificate(authority: _Authority, names: Sequence[str], now_s: float) -> tuple[bytes, bytes]:
    """Key and certificate in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.key.public_key()
    now = datetime.fromtimestamp(now_s, UTC)
    certificate = (
        _builder(SERVER_NAME, key, now - _SKEW, now + timedelta(days=_SERVER_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _key_pem(key), _certificate_pem(certificate)


def _builder(
    subject: str, key: EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(AUTHORITY_NAME))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name.partition("%")[0]))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())


def _renew_at(folder: int, authority: _Authority, names: Sequence[str], now_s: float) -> float:
    """When the server's certificate has to be made again (seconds since the epoch); 0 if it cannot be used at all."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    try:
        certificate = x509.load_pem_x509_certificate(private.read("server.pem", folder, _MOST_BYTES))
        key = serialization.load_pem_private_key(
            private.read("server.key", folder, _MOST_BYTES), password=None
        )
        certificate.verify_directly_issued_by(authority.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return 0.0
    if key.public_key() != certificate.public_key() or list(found) != [_general_name(n) for n in names]:
        return 0.0
    if certificate.not_valid_before_utc.timestamp() > now_s:  # made when this host's clock was wrong
        return 0.0
    return (certificate.not_valid_after_utc - timedelta(days=_RENEW_DAYS)).timestamp()


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(folder: int, name: str, data: bytes) -> None:
    with atomic.replaced(name, at=folder, durable=True) as file:
        file.write(data)
    os.fsync(folder)


def _authority_text(path: str) -> str:
    """Certificates of a file, as text. Errors: BadInput."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError, ssl.SSLError) as error:
        raise BadInput(
            f"cannot be used as an authority: {error}", value=path, remedy="name certificates in PEM"
        ) from None
    return text

"""Certificates of a cluster: one authority, what the API server and the kubelets show, and who its clients are.

The keys are P-256. All is made again for each cluster and removed with it.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from kube_cluster.layout import Layout
from unidle.errors import CannotRun

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise CannotRun("the package cryptography is not installed", remedy="run make setup") from error

_DAYS: Final = 365
_BEFORE: Final = timedelta(days=1)
API_NAMES: Final = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates of servers and clients; its own certificate is ``NAME.crt`` in ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.file = folder / f"{name}.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"unidle-kube-{name}")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, place: Path, subject: str, groups: Sequence[str] = (), names: Sequence[str] = ()) -> Pair:
        """A certificate ``place.crt`` with its key, for a client ``subject`` of ``groups`` and a server of ``names``."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(subject, groups), self._name, key.public_key())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
            )
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(place.with_name(f"{place.name}.crt"), place.with_name(f"{place.name}.key"))
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(pair.key, key)
        return pair


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """A private key that only its owner can read."""
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)


def signing_pair(folder: Path) -> Pair:
    """The keys of service account tokens; ``certificate`` is the file of the public one."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = Pair(folder / "accounts.pub", folder / "accounts.key")
    write_key(pair.key, key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pair.certificate.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return pair


def _name(subject: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, subject)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def write_kubeconfig(path: Path, layout: Layout, authority: Path, client: Pair, user: str) -> None:
    """A file for clients of the API server; it holds the certificates, so it can be copied (JSON is YAML too)."""

    def data(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    name = layout.group
    server = {"server": layout.server, "certificate-authority-data": data(authority)}
    own = {"client-certificate-data": data(client.certificate), "client-key-data": data(client.key)}
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": user, "user": own}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(told, file, indent=1)
        file.write("\n")

"""What is known of a certificate of the site: its text, and what hosts may dial to find it. Read from PEM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SiteCertificate:
    """``pem``: the certificate that is shown now; ``file``: where it is replaced; ``names``: what its clients may dial."""

    pem: str
    file: str
    names: tuple[str, ...] = ()


def first_certificate(text: str) -> str:
    """The first certificate of a PEM file, which is that of the server. Errors: ValueError without one."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = text.partition(begin)
    body, ends, _ = rest.partition(end)
    if not (found and ends):
        raise ValueError("it has no certificate in PEM")
    return f"{begin}{body}{end}\n"


def names_in(pem: str) -> tuple[str, ...]:
    """Names and addresses of a certificate, but for wildcards; none where ``cryptography`` is missing or cannot read it."""
    try:
        from cryptography import x509
    except ImportError:
        return ()
    try:
        found = x509.load_pem_x509_certificate(pem.encode()).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return ()
    hosts = [name for name in names.get_values_for_type(x509.DNSName) if "*" not in name]
    return (*hosts, *map(str, names.get_values_for_type(x509.IPAddress)))

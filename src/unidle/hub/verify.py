"""How clients verify the certificate of the hub."""

from __future__ import annotations

import ssl
from contextlib import suppress

from unidle.hub.authority import AUTHORITY_NAME


def client_context(authority: str) -> ssl.SSLContext:
    """Verifies the hub with these certificates, or with those of the system. Errors: ValueError."""
    try:
        context = ssl.create_default_context(cadata=authority or None)
    except ssl.SSLError as error:
        raise ValueError(f"no certificates: {error.reason}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def exact_context(certificates: str) -> ssl.SSLContext:
    """Accepts a hub that shows one of these certificates, by whomever it was signed, and no other. Errors: ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    # without this flag only a certificate that has signed itself could be trusted so
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as error:
        raise ValueError(f"no certificates: {error.reason}") from None
    return context


def authority_is_own(authority: str) -> bool:
    """Whether the authority is one that only signs the hub's certificate.

    Then the name of the certificate is always the same, and the hub can be dialled under any name or address.
    """
    with suppress(ssl.SSLError, ValueError):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority)
        found = context.get_ca_certs()
        return [each["subject"] for each in found] == [((("commonName", AUTHORITY_NAME),),)]
    return False

"""TLS between the endpoints of a run, from files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from unidle.errors import BadInput


def contexts(given: Mapping[str, str] | None) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """TLS contexts of the server side and the client side: both present a certificate of the authority.

    ``given``: paths of ``certificate``, ``key`` and ``authority``; nothing for no TLS. Errors: BadInput.
    """
    if given is None:
        return None, None
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=given["authority"])
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=given["authority"])
        for context in (server, client):
            context.load_cert_chain(given["certificate"], given["key"])
    except (KeyError, OSError) as error:
        raise BadInput(
            f"cannot be used: {error}", field="tls", value=dict(given), remedy="name a certificate, its key and the authority of both, as PEM files"
        ) from None  # fmt: skip
    return server, client

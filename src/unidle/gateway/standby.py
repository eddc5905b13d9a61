"""What a controller that stands by answers to commands and probes: that another one serves the store."""

from __future__ import annotations

import ssl
import tempfile
import time
from typing import Final

import msgspec

from unidle import private
from unidle.gateway.server import CallServer
from unidle.hub.authority import OwnIdentity
from unidle.kube.commands import STANDBY

_TOLD: Final = msgspec.msgpack.encode(
    {"error": {"kind": STANDBY, "problem": "no controller serves the store", "remedy": "try again"}}
)


def open_standby(listen: str) -> CallServer:
    """Listen on ``HOST:PORT``. Its certificate ends with it. Errors: BadInput, CannotRun."""
    return CallServer(listen, _context(), lambda _: _TOLD)


def _context() -> ssl.SSLContext:
    with tempfile.TemporaryDirectory(prefix="unidle-standby-") as place:
        folder = private.open_folder(place)
        identity = OwnIdentity(folder, place, [], time.time())
        try:
            return identity.context(time.time())
        finally:
            identity.close()

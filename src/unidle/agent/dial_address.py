"""The address of a hub, and the address of this host on the way to it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from unidle.errors import BadInput, HubUnreachable

_FIELD = "--join"
_MOST_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class DialAddress:
    """Host name or address, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_join(text: str) -> DialAddress:
    """``HOST:PORT`` or ``[IPv6]:PORT``. Errors: :class:`BadInput`."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    right = colon and host.strip("[]") and port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not right or (":" in host and not bracketed):
        raise BadInput(
            "is not the address of a controller", field=_FIELD, value=text, remedy="give HOST:PORT or [IPV6]:PORT"
        )  # fmt: skip
    return DialAddress(host.strip("[]"), int(port))


def read_join(given: str) -> DialAddress:
    """The address of a hub: ``given`` itself, or what the file of that absolute path has. Errors: :class:`BadInput`."""
    if not given.startswith("/"):
        return parse_join(given)
    try:
        with open(given, encoding="utf-8", errors="replace") as file:
            return parse_join(file.read(_MOST_CHARACTERS))
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error.strerror}", field=_FIELD, value=given, remedy="see deploy/kubernetes/agent.yaml"
        ) from None  # fmt: skip


def own_address(hub: DialAddress) -> str:
    """The address from which this host reaches the hub. No packet is sent.

    Errors: :class:`HubUnreachable` where the host has no address, or no way leads to it.
    """
    try:
        found = socket.getaddrinfo(hub.host, hub.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        raise HubUnreachable(
            f"no such host: {str(why).lower()}", field=_FIELD, value=str(hub), remedy="check the name, and the name server of this host"
        ) from None  # fmt: skip
    last = ""
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError as error:
            last = error.strerror or str(error)
    raise HubUnreachable(
        f"no way leads there: {last.lower()}",
        field=_FIELD,
        value=str(hub),
        remedy="check the network of this host",
    )

"""The sockets that the hub listens on, and how many descriptors it may have."""

from __future__ import annotations

import errno
import os
import resource
import socket
from contextlib import suppress
from ipaddress import ip_address
from itertools import pairwise
from typing import Final

from unidle.errors import BadInput, CannotRun

DEFAULT_PORT: Final = 7464
_BACKLOG: Final = 128  # clients give up after 5 s: in a long queue all would, before their turn. The kernel drops more, who try again
_SPARE: Final = 4096  # descriptors for all else


def parsed(listen: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[v6]:PORT``, ``:PORT`` or ``HOST``. Errors: BadInput."""
    host, colon, port = listen.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or listen.endswith("]"):
        host, port = listen, str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadInput(
            "is not an address with a port", field="--listen", value=listen, remedy="write HOST:PORT"
        )
    return host.strip("[]"), int(port)


def listening(listen: str) -> list[socket.socket]:
    """Non-blocking sockets that listen on every address of a host; none given: on all addresses.

    Port 0 takes one free port for all. Errors: BadInput for a host without an address, CannotRun for a port that is
    taken or not allowed.
    """
    host, port = parsed(listen)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"has no address: {error}", field="--listen", value=listen, remedy="name an address of this host"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with suppress(_NoFamily):
                sockets.append(_one(family, kind, protocol, (address[0], port, *address[2:])))
                port = sockets[0].getsockname()[1]
    except OSError as error:
        for each in sockets:
            each.close()
        raise CannotRun(
            f"cannot listen: {os.strerror(error.errno or 0).lower()}",
            field="--listen",
            value=listen,
            remedy=_remedy(error),
        ) from None
    if not sockets:
        raise CannotRun("no address of it can be used here", field="--listen", value=listen)
    return sockets


class _NoFamily(Exception):
    """This kernel has no such addresses (IPv6 is off)."""


def _one(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    try:
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            raise _NoFamily from None
        raise
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
            raise _NoFamily from None
        raise
    return sock


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has this port: end it, or choose another port"
    if error.errno == errno.EACCES:
        return "choose a port above 1023"
    return "name an address of this host"


def names_of(sockets: list[socket.socket]) -> list[str]:
    """Addresses and host names under which clients may reach these sockets."""
    names = ["localhost"]
    with suppress(UnicodeError):
        host = socket.gethostname()
        host.encode("idna")
        names += [host] if host else []
    for each in sockets:
        address = each.getsockname()[0]
        if ip_address(address.partition("%")[0]).is_unspecified:
            names += ["127.0.0.1" if each.family == socket.AF_INET else "::1", *_own_addresses(each.family)]
        else:
            names.append(address)
    return list(dict.fromkeys(names))


def _own_addresses(family: int) -> list[str]:
    """Addresses of this network namespace, as the kernel lists them: no name server is asked."""
    with suppress(OSError):
        if family == socket.AF_INET6:
            with open("/proc/self/net/if_inet6", encoding="ascii") as file:
                return [str(ip_address(bytes.fromhex(line.split()[0]))) for line in file]
        with open("/proc/self/net/fib_trie", encoding="ascii") as file:
            lines = [line.split() for line in file]
        own = [before[1] for before, line in pairwise(lines) if line[:3] == ["/32", "host", "LOCAL"]]
        return list(dict.fromkeys(own))
    return []


def raise_descriptor_limit(wanted: int) -> int:
    """Let this process open so many connections and some files; the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted + _SPARE
    if soft != resource.RLIM_INFINITY and soft < target:
        higher = [(target, max(hard, target))] if hard != resource.RLIM_INFINITY else [(target, hard)]
        for limits in [*higher, (min(target, hard), hard)]:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

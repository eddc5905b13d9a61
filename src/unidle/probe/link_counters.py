"""What the kernel counts of links: from ``/sys`` of the machine, and over rtnetlink inside a network namespace."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from unidle.fleet.pci import read_text
from unidle.guard.counters import ERRORS

# linux/netlink.h, linux/rtnetlink.h, linux/if_link.h
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE, _NEWLINK, _GETLINK = 2, 3, 16, 18
_IFNAME, _CARRIER_CHANGES, _CARRIER_DOWN_COUNT = 3, 35, 48
_HEADER: Final = struct.Struct("=IHHII")
_INTERFACE: Final = struct.Struct("=BxHiII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_TYPE_MASK: Final = 0x3FFF
_MOST_BYTES: Final = 1 << 17  # the kernel fills no more than 32 KiB
_TIMEOUT_S: Final = 5.0


def carrier_losses(interface: Path) -> int | None:
    """How often an interface (its directory in ``/sys/class/net``) lost its carrier; None where it does not tell."""
    down = read_text(interface / "carrier_down_count")
    if down.isdecimal():
        return int(down)
    changes = read_text(interface / "carrier_changes")  # kernels before 4.16 have only this
    return int(changes) // 2 if changes.isdecimal() else None


def port_errors(port: Path) -> dict[str, int]:
    """The error counters (:data:`unidle.guard.counters.ERRORS`) of a port (``/sys/class/infiniband/*/ports/*``)."""
    found: dict[str, int] = {}
    for counter in ERRORS:
        for room in ("counters", "hw_counters"):
            text = read_text(port / room / counter)
            if text.isdecimal():
                found[counter] = int(text)
                break
    return found


def carrier_losses_here() -> dict[str, int]:
    """How often each interface of the calling thread's network namespace lost its carrier.

    ``/sys`` shows the namespace that it was mounted in, rtnetlink the caller's. Errors: OSError.
    """
    found: dict[str, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        size = _HEADER.size + _INTERFACE.size
        kernel.send(_HEADER.pack(size, _GETLINK, _REQUEST | _DUMP, 1, 0) + _INTERFACE.pack(0, 0, 0, 0, 0))
        while True:
            data = kernel.recv(_MOST_BYTES)
            for kind, body in _messages(data):
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "the kernel lists no links")
                if kind == _NEWLINK:
                    told = dict(_attributes(body[_INTERFACE.size :]))
                    losses = _losses(told)
                    if _IFNAME in told and losses is not None:
                        found[os.fsdecode(told[_IFNAME].rstrip(b"\0"))] = losses


def _losses(told: dict[int, bytes]) -> int | None:
    if _CARRIER_DOWN_COUNT in told:
        return int(struct.unpack_from("=I", told[_CARRIER_DOWN_COUNT])[0])
    if _CARRIER_CHANGES in told:
        return int(struct.unpack_from("=I", told[_CARRIER_CHANGES])[0]) // 2
    return None


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + size]
        at += -(-size // 4) * 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + size]
        at += -(-size // 4) * 4

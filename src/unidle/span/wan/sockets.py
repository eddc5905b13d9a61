"""Options of sockets, TCP information of a connection, and congestion control."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.span.wan.api import PortTaken, Settings

_STEADY: Final = ("cubic", "reno")
_PAUSES: Final = "bbr"
_NAME_BYTES: Final = 16
_AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def control(wanted: str = "") -> str:
    """``wanted``. If that is empty: an empty text for the kernel's default, or a steady algorithm if the default
    is BBR.

    Errors: ``ValueError`` if ``wanted`` cannot be used on this machine.
    """
    with socket.socket() as link:
        if wanted:
            if not _takes(link, wanted):
                raise ValueError(f"this kernel and user have {_here()} (root has all of them)")
            return wanted
        if not _of(link).startswith(_PAUSES):
            return ""
        return next((name for name in _STEADY if _takes(link, name)), "")


def _takes(link: socket.socket, name: str) -> bool:
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError:
        return False
    return _of(link) == name


def _of(link: socket.socket) -> str:
    return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).rstrip(b"\0").decode()


def _here() -> str:
    try:
        return ", ".join(_AVAILABLE.read_text().split())
    except OSError:
        return "those of the kernel"


SO_MAX_PACING_RATE: Final = 47  # asm-generic/socket.h
TCP_NOTSENT_LOWAT: Final = 25  # linux/tcp.h
TCP_USER_TIMEOUT: Final = 18
_INFO_BYTES: Final = 256
# Offsets in struct tcp_info of linux/tcp.h.
_RTT_AT: Final = 68
_RETRANSMITS_AT: Final = 100
_SEGMENTS_OUT_AT: Final = 136


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Of one connection since its start: smoothed round trip, segments sent, and those of them sent again."""

    rtt_ns: int
    segments: int
    retransmitted: int


def tcp_info(link: socket.socket) -> TcpInfo | None:
    """TCP information from the kernel; None if it is unavailable."""
    try:
        raw = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(raw) < _SEGMENTS_OUT_AT + 4:
        return None

    def number(at: int) -> int:
        return int(struct.unpack_from("=I", raw, at)[0])

    return TcpInfo(number(_RTT_AT) * 1000, number(_SEGMENTS_OUT_AT), number(_RETRANSMITS_AT))


def before_connect(link: socket.socket, settings: Settings) -> None:
    """Buffers: the window scale is agreed on when a connection starts, so a listener needs them, too."""
    if settings.flow_buffer_bytes:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            link.setsockopt(socket.SOL_SOCKET, option, settings.flow_buffer_bytes)
    if settings.congestion:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, settings.congestion.encode())


def after_connect(link: socket.socket, settings: Settings) -> None:
    """What the rest of a connection's life needs."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # bounds and speed only: each works without
        link.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, settings.unsent_bytes)
    with contextlib.suppress(OSError):
        link.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, int(settings.dead_s * 1000))
    link.setblocking(False)


def pace(link: socket.socket, bytes_per_s: int) -> bool:
    """Limit the rate of a connection in the kernel; False if that is not supported."""
    try:
        link.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", bytes_per_s))
        told = link.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8)
    except OSError:
        return False
    return int.from_bytes(told, "little") == bytes_per_s


def listener(address: tuple[str, int], settings: Settings) -> socket.socket:
    """A listening socket. Errors: :class:`PortTaken`."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        before_connect(made, settings)
        made.bind(address)
        made.listen(256)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"listen: port {address[1]} of {address[0]} is taken; another run may be on it: end that one, or name"
                " another port"
            ) from None
        raise
    made.setblocking(False)
    return made

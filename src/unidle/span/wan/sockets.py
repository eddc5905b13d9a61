"""Options of sockets, and TCP information of a connection."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from dataclasses import dataclass
from typing import Final

from unidle.span.wan.errors import PortTaken
from unidle.span.wan.settings import Settings

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

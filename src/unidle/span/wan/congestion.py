"""Congestion control of the flows of a training run.

BBR measures the round trip of the path every 10 s with four segments in flight for 200 ms
(draft-cardwell-iccrg-bbr, ProbeRTT). All flows of a channel begin together and do that together, so a stage waits
for a quarter of a second, on each link at another time. Controls that follow losses do not; on a path that loses
much they are slow, and BBR is worth its pauses there.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

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

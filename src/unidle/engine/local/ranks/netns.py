"""Nodes that are network namespaces of this machine: their ranks have addresses and links of their own."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _T = TypeVar("_T")

CLONE_NEWNET = 0x40000000
SIOCGIFADDR = 0x8915
WHERE = "/run/netns"


def enter(name: str) -> None:
    """Move the calling thread permanently into a namespace. Errors: OSError if it does not exist or may not be entered."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"{WHERE}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"network namespace {name}: {os.strerror(number)}")
    finally:
        os.close(fd)


def within(name: str, call: Callable[[], _T]) -> _T:
    """What ``call`` returns inside a namespace; sockets that it made stay there. Without a name: here."""
    if not name:
        return call()
    import threading  # few nodes are namespaces

    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter(name)
            results.append(call())
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def interface_of(name: str, address: str) -> str:
    """The interface of a namespace that has an IPv4 address; empty where none has."""

    def find() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, interface in socket.if_nameindex():
                request = struct.pack("256s", interface.encode()[:15])
                try:
                    answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                except OSError:
                    continue  # it has no address
                if socket.inet_ntoa(answer[20:24]) == address:
                    return interface
        return ""

    return within(name, find)

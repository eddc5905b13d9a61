"""Starts the command that follows with limits and, where namespaces are allowed, without a network. Run by ``child.py``.

Containment, not security: the program may still read and write what its user may.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MOST_FILE_BYTES = 16 << 30


def without_network(libc: ctypes.CDLL) -> bool:
    """Enter a network namespace that has a loopback device only."""
    import fcntl

    if libc.unshare(CLONE_NEWNET) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh22x", b"lo", 0)
        try:
            flags = struct.unpack("16sh22x", fcntl.ioctl(probe, SIOCGIFFLAGS, request))[1]
            fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))
        except OSError:
            pass
    return True


def main() -> None:
    """Arguments: the most seconds of CPU, then the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    without_network(libc)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606
    except OSError as error:
        print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()

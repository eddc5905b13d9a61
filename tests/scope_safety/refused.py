"""Runs a command whose system calls of some numbers are refused, as a container's seccomp profile refuses them.

``python refused.py NUMBER[,NUMBER...] COMMAND...``; the numbers are those of this machine's kind (x86-64: bpf 321,
perf_event_open 298).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def main() -> None:
    numbers = [int(n) for n in sys.argv[1].split(",")]
    steps = [(LOAD, 0, 0, 0)]
    steps += [(IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("H6xQ", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, program, 0, 0)):
        if libc.prctl(*call) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()

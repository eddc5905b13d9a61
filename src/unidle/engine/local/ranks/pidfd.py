"""Descriptors of processes, also for Pythons before 3.9, which have no calls for them. They need Linux 5.3."""

from __future__ import annotations

import os
import signal

_SEND_SIGNAL, _OPEN = 424, 434  # the same numbers on every architecture


def open_pid(pid: int) -> int:
    """A descriptor that becomes readable when the process ends, closed on exec. Errors: OSError, ProcessLookupError where it is gone."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _system_call(_OPEN, pid, 0)  # the kernel sets close-on-exec


def send(pidfd: int, number: int) -> None:
    """Signal the process. Errors: ProcessLookupError where it is gone."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        _system_call(_SEND_SIGNAL, pidfd, int(number), None, 0)


def _system_call(number: int, *arguments: int | None) -> int:
    import ctypes  # only where Python has no call of its own

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_void_p() if each is None else ctypes.c_long(each) for each in arguments]
    answer = int(libc.syscall(ctypes.c_long(number), *given))
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return answer

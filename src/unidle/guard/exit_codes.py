"""The agreed meanings of exit codes and signals. Pure."""

from __future__ import annotations

import signal
from typing import Final

BUGS: Final = frozenset({"SIGSEGV", "SIGABRT", "SIGFPE", "SIGTRAP", "SIGSYS"})
"""Signals of a program's own doing."""
SIGNALS: Final = {
    "SIGKILL": "sent from outside of unidle: by a person, a container's manager or the kernel",
    "SIGTERM": "sent from outside of unidle: something asked it to end",
    "SIGINT": "KeyboardInterrupt or SIGINT, sent from outside of unidle or raised by the program",
    "SIGHUP": "its terminal or session was closed",
    "SIGSEGV": "it used memory that is not its own",
    "SIGBUS": "memory that it used is not there: shared memory (/dev/shm) or a mapped file that is too small",
    "SIGABRT": "it ended itself after an error",
    "SIGFPE": "an integer division by zero, or the like",
    "SIGILL": "the CPU does not know an instruction: the program was built for another one",
    "SIGTRAP": "it ended itself after an error",
    "SIGSYS": "it made a system call that is not allowed here",
    "SIGPIPE": "the reader of its pipe or socket is gone",
    "SIGXCPU": "it used more CPU time than its limit (ulimit -t)",
    "SIGXFSZ": "it wrote a larger file than its limit (ulimit -f)",
}


CODES: Final = {
    124: "the command timeout ended it",
    126: "the command may not be executed",
    127: "the command was not found",
}


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def meaning_of(code: int) -> str:
    """Of an exit code, or minus a signal; empty where it has none."""
    if code < 0:
        return SIGNALS.get(signal_name(-code), "")
    if code > 128 and (name := signal_name(code - 128)).startswith("SIG"):
        meaning = SIGNALS.get(name, "")
        return f"128 + {code - 128}: a process of it was killed by {name}" + (
            f" ({meaning})" if meaning else ""
        )
    return CODES.get(code, "")

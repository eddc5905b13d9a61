"""The programs of a run on the simulated disk, forked from a process that has imported what they need.

The recorder is loaded into that process, and begins in what is forked from it. `another_boot` is a file with another name
of this boot, which the process has in mounts of its own.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))
from warm_commands import WarmCommands, import_all, run_to_end, serve, take_on

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NEW_MOUNTS, _BIND, _EVERYWHERE, _PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


class Programs(WarmCommands):
    """The client's end. Words are those of `unidle`, or "client" and its arguments."""

    def __init__(self, library: Path) -> None:
        self.library = library
        super().__init__(Path(__file__), {"LD_PRELOAD": str(library)})


def _own_boot(file: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def done(code: int) -> None:
        if code:
            raise OSError(ctypes.get_errno(), f"another boot: {os.strerror(ctypes.get_errno())}")

    done(libc.unshare(_NEW_MOUNTS))
    done(libc.mount(None, b"/", None, _EVERYWHERE | _PRIVATE, None))
    done(libc.mount(file.encode(), BOOT_ID.encode(), None, _BIND, None))


def _become(task: dict[str, Any], streams: list[int]) -> NoReturn:
    take_on(task, streams)
    if boot := os.environ.pop("UNIDLE_DISK_BOOT", ""):
        _own_boot(boot)
    ctypes.CDLL(None).simulated_disk_forked()
    if task["words"][0] == "client":
        from disk import client

        run_to_end(lambda: client.main(*task["words"][1:]))
    else:
        from unidle.__main__ import main

        sys.argv = ["unidle", *task["words"]]
        run_to_end(main)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_line:
        os.set_inheritable(its_line.fileno(), False)
        import_all()
        import disk.client  # noqa: F401 - here, and not in each

        serve(its_line, _become)

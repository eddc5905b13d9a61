"""Whether a gang can be followed with the descriptors that are left: one that cannot is refused before it starts."""

from __future__ import annotations

import errno
import os
import resource

from unidle.engine.local.ranks.process_tree import said

PER_RANK = 3  # its lock, its supervisor's process and its journal
RESERVE = 32  # for the store, for looks at ranks and for the programs that it starts


def shortage(ranks: int) -> str | None:
    """Why so many more ranks cannot be followed; None where there are enough descriptors for them."""
    needed = ranks * PER_RANK + RESERVE
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY:
        left = limit - _open_here()
        if left < needed:
            return _text(
                ranks,
                needed,
                left,
                f"of this process's limit of {limit}",
                "`ulimit -n`, or LimitNOFILE= of a service,",
            )
    machine = _of_machine()
    if machine is not None and machine[1] - machine[0] < needed:
        left = machine[1] - machine[0]
        return _text(ranks, needed, left, f"of the machine's limit of {machine[1]}", "`sysctl fs.file-max`")
    return None


def exhausted(error: OSError) -> bool:
    """Whether a call failed only because no descriptor was left: this proves nothing about the file."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def _text(ranks: int, needed: int, left: int, of: str, remedy: str) -> str:
    return (
        f"too few open files: {ranks} rank{'' if ranks == 1 else 's'} and a reserve need {needed}, and {max(left, 0)} {of} are left;"
        f" raise {remedy} and restart `unidle up`"
    )


def _open_here() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as error:
        return 1 << 62 if exhausted(error) else 0


def _of_machine() -> tuple[int, int] | None:
    """Files that are open on this machine, and how many may be; None where that cannot be read."""
    try:
        used, _, most = said("/proc/sys/fs/file-nr").split()
    except (OSError, ValueError):
        return None
    return int(used), int(most)

"""The command line of a box: one process for one job and node."""

from __future__ import annotations

import fcntl
import os
import sys

from unidle.box import settings

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = """usage: python -m unidle.box DIR [--output]

Holds the ranks of one job on this node, as the hub in DIR/box.json commands. It ends when its work is over, and on
SIGTERM, which stops its ranks with their grace. --output: copies what the ranks print to its own output.
"""
BAD_USE, HELD = 2, 3
LOCK = "box.lock"


def main(arguments: Sequence[str]) -> int:
    """0: its work is over; 2: it cannot work as it was asked to; 3: another box has the job here."""
    words = [word for word in arguments if word != "--output"]
    if words == ["--help"]:
        sys.stdout.write(USAGE)
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(USAGE)
        return BAD_USE
    try:
        found = settings.read(words[0])
        os.makedirs(found.job_directory, 0o700, exist_ok=True)
        locks = [_lock(each) for each in {found.directory, found.job_directory}]
    except BlockingIOError as error:
        sys.stderr.write(f"unidle box: {error}\n")
        return HELD
    except (settings.BadSettings, OSError) as error:
        sys.stderr.write(f"unidle box: {error}\n")
        return BAD_USE
    from unidle.box.box import Box  # not before: TLS takes the most memory, and who is refused needs none

    try:
        box = Box(found, output="--output" in arguments)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"unidle box: {error}\n")
        return BAD_USE
    code = box.run()
    for fd in locks:
        os.close(fd)
    return code


def _lock(directory: str) -> int:
    """The lock of a directory, with this process's number in it. Errors: BlockingIOError where another box has it."""
    path = os.path.join(directory, LOCK)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise BlockingIOError(
            f"the box with pid {other or 'unknown'} has {directory}; one box is enough"
        ) from None
    try:
        os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()}\n".encode(), 0))
    except OSError:
        pass  # a full disk: the lock holds all the same
    return fd

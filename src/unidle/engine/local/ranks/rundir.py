"""The run directory: which file means what, and how files are replaced without being seen half-written.

``RUN_ROOT/JOB/ATTEMPT/`` holds ``gang.json`` (address, port and boot of the attempt) and one
``rank<k>/`` per rank:

- ``orders.json``: what the supervisor is to do
- ``lock``: held (flock) from the engine's decision to start the rank until its supervisor is gone
- ``claimed``: exists once a supervisor has begun to run the rank; it is never begun again
- ``supervisor.json``: ``pid`` and ``ticks`` (start time) of the supervisor; ``supervisor.err``: its stderr
- ``journal.jsonl``: the marks; ``log``, ``log.1``, ...: the rank's output, newest first; ``log.times``: when
  it was printed, and what rotation dropped
- ``stop``: the grace of a stop that was asked for
- ``reserve``: disk space kept for the exit record

Of ranks in pods the store has copies of ``log``, and ``JOB/copied``.
A box has ``JOB/lease`` (until when its ranks may run), ``JOB/box.lock`` and ``JOB/ATTEMPT/released`` there, too.

Standard library only: the supervisor imports it.
"""

from __future__ import annotations

import fcntl
import json
import os

from unidle.atomic import replaced

TYPE_CHECKING = False  # importing typing would slow the supervisor's start

if TYPE_CHECKING:
    from typing import Any

GANG = "gang.json"
ORDERS = "orders.json"
SERVICE = "UNIDLE_SERVICE"  # variable of a rank 0 that serves: its port (0: any) and the path of its check
LOCK = "lock"
CLAIMED = "claimed"
SUPERVISOR = "supervisor.json"
ERRORS = "supervisor.err"
JOURNAL = "journal.jsonl"
LOG = "log"
TIMES = "log.times"
STOP = "stop"
RESERVE = "reserve"
FILLS = "fill.jsonl"  # of the job: what fillers did in the waits of its ranks
RELEASED = "released"
COPIED = "copied"
COPY = b"K\n"  # the first line of the times of a log that is a copy: other files than the rank's own
HOLDERS = ".holders"  # in the run root: no job's name begins with a dot
SLICES = ".slices"  # there, too: what attempts hold of devices that are cut


def path_part(name: str) -> str:
    """A job's id as one part of a path. Errors: ValueError for an id that leads to another directory."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the id of a job: it cannot name a directory")
    return name


def is_shown(name: str) -> bool:
    """Whether the file of a rank directory may be read from another host: what the rank and its supervisor wrote."""
    number = name[len(LOG) + 1 :] if name.startswith(f"{LOG}.") else ""
    return name in (JOURNAL, LOG, TIMES, ERRORS) or (
        number.isascii() and number.isdigit() and len(number) < 4
    )


def attempt_dir(run_root: str | os.PathLike[str], job: str, attempt: int) -> str:
    """The directory of one attempt."""
    return os.path.join(run_root, path_part(job), str(attempt))


def rank_dir(run_root: str | os.PathLike[str], job: str, attempt: int, rank: int) -> str:
    """The directory of one rank of one attempt."""
    return os.path.join(attempt_dir(run_root, job, attempt), f"rank{rank}")


def write_json(path: str, content: dict[str, object]) -> None:
    """Replace ``path`` in one step; readable by the owner only."""
    with replaced(path) as file:
        file.write(json.dumps(content).encode())


def read_json(path: str) -> dict[str, object] | None:
    """The object in ``path``; None when there is none to be read, and for a link or a file of another user than root."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8") as file:
            content = json.load(file) if os.fstat(fd).st_uid in (os.geteuid(), 0) else None
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def try_lock(directory: str) -> int | None:
    """Take the lock of a rank directory; its descriptor, or None while another process holds it."""
    fd = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def is_held(path: str | os.PathLike[str]) -> bool:
    """Whether a process has the lock of this file. The file is not made."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def lock_for_reading(directory: str | os.PathLike[str]) -> int | None:
    """Take a shared lock on the run directory of a job; its descriptor, or None if that is not possible."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)  # the other side holds it for a moment only
    except OSError:
        os.close(fd)
        return None
    return fd


def is_read(directory: str | os.PathLike[str]) -> bool:
    """Whether a process has the lock of :func:`lock_for_reading`."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)
    return False


def release(lock: int) -> None:
    """Give a lock back."""
    os.close(lock)


def claim(directory: str) -> bool:
    """Claim a rank permanently; False if it was claimed before. Only for the holder of its lock."""
    try:
        os.close(os.open(os.path.join(directory, CLAIMED), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def is_claimed(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, CLAIMED))


def ask_stop(directory: str, grace_ns: int) -> int:
    """Leave a stop for the supervisor to find; the grace that holds: the shortest one asked for."""
    before = stop_grace_ns(directory)
    if before is not None and before <= grace_ns:
        return before
    write_json(os.path.join(directory, STOP), {"grace_ns": grace_ns})
    return grace_ns


def stop_grace_ns(directory: str) -> int | None:
    """The grace of the stop that was asked for; None when none was."""
    asked = read_json(os.path.join(directory, STOP))
    grace = asked.get("grace_ns") if asked else None
    return grace if isinstance(grace, int) else None


class SupervisorOrders:
    """How to run one rank.

    ``env`` is added to the supervisor's own environment, ``unset`` taken away from it; ``groups`` is
    the rank's control group (:class:`~unidle.engine.local.ranks.cgroups.ControlGroup`), ``clock_offset_ns`` turns
    the boot-time clock into the controller's. ``boot`` names the boot of the machine.
    ``lease`` is the file with the lease of the box that holds the rank (``lease_file``); nothing for a rank without one.
    """

    def __init__(
        self,
        *,
        argv: list[str],
        workdir: str,
        env: dict[str, str],
        unset: list[str],
        clock_offset_ns: int,
        grace_ns: int,
        groups: dict[str, str],
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        progress_pattern: str | None = None,
        checkpoint_path: str | None = None,
        log_file_bytes: int = 16 * 1024 * 1024,
        log_files: int = 4,
        boot: str = "",
        lease: str = "",
    ) -> None:
        self.argv = argv
        self.workdir = workdir
        self.env = env
        self.unset = unset
        self.clock_offset_ns = clock_offset_ns
        self.grace_ns = grace_ns
        self.groups = groups
        self.memory_bytes = memory_bytes
        self.cpus = cpus
        self.pids = pids
        self.progress_pattern = progress_pattern
        self.checkpoint_path = checkpoint_path
        self.log_file_bytes = log_file_bytes
        self.log_files = log_files
        self.boot = boot
        self.lease = lease

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SupervisorOrders:
        return cls(**content)

    def as_json(self) -> dict[str, object]:
        return dict(self.__dict__)

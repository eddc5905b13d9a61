"""Evidence of why a rank failed: the error in its output, and whether the kernel killed it for lack of memory."""

from __future__ import annotations

import os
import re
import signal

from ...cgroups import ControlGroup, text_of
from ..container_kills import kills_of
from .last_error import read_failure

TYPE_CHECKING = False

if TYPE_CHECKING:
    from ..supervise import Supervisor

STOPPED = (-signal.SIGTERM, -signal.SIGKILL)
KERNEL_LOG = "/dev/kmsg"
RECORD_BYTES = 8192
MOST_RECORDS = 100_000
NO_LIMIT_BYTES = 1 << 60  # what v1 has for none is a little below 2 ** 63
_CHOSEN = re.compile(r"oom-kill:constraint=(\w+).*task_memcg=([^,]*),task=(.*),pid=(\d+),uid=\d+").search
_KILLED = re.compile(
    r"(Memory cgroup out of memory|Out of memory[^:]*): Kill(?:ed)? process (\d+) \((.*?)\)(.*)"
).search
_RSS = re.compile(r"(?:anon|shmem)-rss:(\d+)kB").findall


def evidence(rank: Supervisor, code: int, info: dict[str, object]) -> dict[str, object]:
    """Fields of the exit mark beyond its ``info``, which gets those of the kernel's kill."""
    last: dict[str, object] = {}
    out, err, both = (rank.last[name].take() for name in ("stdout", "stderr", "both"))
    # of one that was stopped only an error of its own matters
    if not (rank.stopping and code in STOPPED) or b"Traceback" in err:
        cut = rank.last["stdout"].cut, rank.last["stderr"].cut
        last = read_failure(out, err, both, code, rank.orders.workdir, cut)
    info.update(_out_of_memory(rank, code, oom=info["oom"] is True))
    return {"last": last} if last else {}


def _out_of_memory(rank: Supervisor, code: int, *, oom: bool) -> dict[str, object]:
    """Which limit the kernel killed a process for; asked where it did, or where the killer is unknown."""
    if not oom and (code != -signal.SIGKILL or rank.killed_ns is not None):
        return {}
    if not oom and rank.above is not None and (kills_of(rank.above) or 0) > (rank.kills_before or 0):
        limit = limit_of(ControlGroup({"memory": rank.above}))
        return {
            "oom": True,
            **limit,
            **({"oom_limit_of": "above"} if limit.get("oom_limit_of") == "rank" else {}),
        }
    said = kernel_says(rank.group.paths, rank.pid, rank.started_us)
    if not (oom or said):
        return {}
    of_machine = bool(said.pop("oom_machine", False))
    return {"oom": True, **limit_of(rank.group, of_machine=of_machine), **said}


def limit_of(group: ControlGroup, *, of_machine: bool = False) -> dict[str, object]:
    """The limit that a group ran into, as ``oom_limit_bytes``, and whose it is: ``rank``, ``above`` or ``machine``."""
    path, is_v1 = group.paths.get("unified", ""), False
    if (memory := group.v1("memory")) is not None:
        path, is_v1 = memory, True
    whose = "rank"
    while path.count("/") > 2 and not of_machine:  # below the hierarchy's own mount
        bound = _number(f"{path}/{'memory.limit_in_bytes' if is_v1 else 'memory.max'}")
        if bound is not None and bound < NO_LIMIT_BYTES and _was_hit(path, bound, is_v1):
            return {"oom_limit_bytes": bound, "oom_limit_of": whose}
        path, whose = os.path.dirname(path), "above"
    total = re.search(r"MemTotal:\s+(\d+) kB", text_of("/proc/meminfo"))
    return {"oom_limit_bytes": int(total[1]) * 1024, "oom_limit_of": "machine"} if total else {}


def _was_hit(path: str, bound: int, is_v1: bool) -> bool:
    """Whether it was used up; v1's own count of that stays 0 on recent kernels."""
    if is_v1:
        return (_number(f"{path}/memory.max_usage_in_bytes") or 0) >= bound * 9 // 10
    found = re.search(r"^oom (\d+)$", text_of(f"{path}/memory.events"), re.MULTILINE)
    return found is not None and int(found[1]) > 0


def kernel_says(
    paths: dict[str, str], pid: int | None, since_us: int, log: str = KERNEL_LOG
) -> dict[str, object]:
    """The last kill for lack of memory, of a process of this group or of ``pid``, since ``since_us`` (the kernel log's clock).

    ``oom_process`` and ``oom_used_bytes`` are of the process that was killed. ``oom_machine``: the machine ran out
    of memory, not a group with a limit. Empty if the log cannot be read or has no such kill.
    """
    tails = {"/".join(path.rsplit("/", 2)[-2:]) for path in paths.values()}
    found: dict[str, object] = {}
    victims = {pid} if pid is not None else set()
    for text in _records(log, since_us):
        if (chosen := _CHOSEN(text)) is not None:
            if any(f"/{tail}" in chosen[2] for tail in tails):
                victims.add(int(chosen[4]))
        elif (killed := _KILLED(text)) is not None and int(killed[2]) in victims:
            used = sum(int(kilobytes) for kilobytes in _RSS(killed[4])) * 1024
            found = {"oom_process": killed[3][:40], "oom_machine": killed[1].startswith("Out")}
            if used:
                found["oom_used_bytes"] = used
    return found


def _records(log: str, since_us: int) -> list[str]:
    """Messages of the kernel, the oldest first."""
    found = []
    for line in _lines(log):
        head, _, message = line.partition(b";")
        stamp = head.split(b",")[2:3]
        if b"ill" in message and stamp and stamp[0].isdigit() and int(stamp[0]) >= since_us:
            found.append(message.decode("utf-8", "replace"))
    return found


def _lines(log: str) -> list[bytes]:
    """All that is in the kernel's log, of which each read gives one record."""
    data = bytearray()
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(fd, RECORD_BYTES)
            except BrokenPipeError:
                continue  # it was overwritten before it was read
            except OSError:
                break
            if not record:
                break
            data += record
    finally:
        os.close(fd)
    return bytes(data).split(b"\n")


def _number(path: str) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None

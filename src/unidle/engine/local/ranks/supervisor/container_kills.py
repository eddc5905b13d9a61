"""How often the kernel killed a process of the control group that this process is in: where ranks have no groups of their own, as in a pod.

With control groups of version 1 the kernel kills one process of a container, and the container continues. Standard library only.
"""

from __future__ import annotations

import re

from ..cgroups import text_of

MOUNT = "/sys/fs/cgroup"


def own_memory_group(mount: str = MOUNT, cgroup: str = "/proc/self/cgroup") -> str | None:
    """The directory of the memory controller of version 1 for this process; None without one.

    In a container the mount is that of its own group, and the path in ``cgroup`` may be one of the node.
    """
    line = re.search(r"^\d+:(?:\S+,)?memory(?:,\S+)?:(\S*)$", text_of(cgroup), re.MULTILINE)
    if line is None:
        return None
    for path in (f"{mount}/memory{line[1]}".rstrip("/"), f"{mount}/memory"):
        if text_of(f"{path}/memory.oom_control"):
            return path
    return None


def kills_of(group: str | None) -> int | None:
    """Processes of the group that were killed for lack of memory so far; None where that is unknown."""
    found = (
        re.search(r"^oom_kill (\d+)$", text_of(f"{group}/memory.oom_control"), re.MULTILINE)
        if group
        else None
    )
    return int(found[1]) if found else None

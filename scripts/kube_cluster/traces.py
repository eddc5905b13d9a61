"""What this machine still has of a cluster: nothing, once it was taken down."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from kube_cluster.layout import Layout


def traces(layout: Layout) -> list[str]:
    """Everything on this machine that is of a cluster: processes, control groups, interfaces, routes, mounts, files."""
    found = [f"file {layout.folder}"] if layout.folder.exists() else []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            found += _of_process(entry, layout)
    tops = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
    found += [f"control group {top / layout.group}" for top in tops if (top / layout.group).exists()]
    links = json.loads(subprocess.run(["ip", "-json", "link"], check=True, capture_output=True).stdout)
    found += [f"interface {link['ifname']}" for link in links if layout.id in link["ifname"]]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [f"mount {line}" for line in mounts if str(layout.folder) in line or layout.group in line]


def _of_process(entry: Path, layout: Layout) -> list[str]:
    """A process that is in the cluster's group, or whose mounts are of the cluster."""
    try:
        in_group = layout.group in (entry / "cgroup").read_text()
        mounts = str(layout.folder) in (entry / "mountinfo").read_text()
        name = (entry / "comm").read_text().strip()
    except OSError:  # gone meanwhile
        return []
    return [f"process {entry.name} {name}"] if in_group or mounts else []

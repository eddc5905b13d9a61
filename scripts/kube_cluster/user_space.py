"""The user space of this machine for pods of a cluster: there is no registry, so Python and this checkout come by paths of the host.

With it the image of the cluster's nodes runs the controller, the agents and the ranks of a job.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kube_cluster.layout import IMAGE, ROOT


def paths() -> list[str]:
    """Directories that Python and the checkout need."""
    found = dict.fromkeys(["/usr", sys.base_prefix, str(ROOT)])
    return [path for path in found if path == "/usr" or not path.startswith("/usr/")]


def pod_section(*places: Path, **more: object) -> dict[str, Any]:
    """Of a job file: pods that have the user space, and directories of this machine to write to."""
    volumes: list[dict[str, Any]] = [
        {"mount": path, "host_path": path, "read_only": True} for path in paths()
    ]
    volumes += [{"mount": str(place), "host_path": str(place)} for place in places]
    return {"image": IMAGE, "image_pull_policy": "Never", "volumes": volumes, "run_as_user": 0, **more}


def program() -> dict[str, Any]:
    """Of the chart, for its controller or its agents: ``unidle`` of this checkout."""
    volumes = [{"name": f"host-{k}", "hostPath": {"path": path}} for k, path in enumerate(paths())]
    mounts = [{"name": f"host-{k}", "mountPath": path, "readOnly": True} for k, path in enumerate(paths())]
    return {
        "command": [str(ROOT / ".venv" / "bin" / "unidle")],
        "extraVolumes": volumes,
        "extraVolumeMounts": mounts,
        "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
    }


def agents(**more: Any) -> dict[str, Any]:
    """Of the chart: agents that leave the kernel log alone, as this machine's is of all nodes, and of other work."""
    return {**program(), "extraArgs": ["--kernel-log=off"], **more}


def values(store: Path, **more: Any) -> dict[str, Any]:
    """Of the chart, without agents. ``store``: the directory of the store."""
    controller = {**program(), "runAsUser": 0, "resources": {"requests": {"cpu": "50m"}}}
    return {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "deadline": "8s",
        "store": {"hostPath": str(store)},
        "controller": controller,
        "agents": {"enabled": False},
        **more,
    }

"""``scripts/kube status``: what of a cluster lives, and what it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from kube_cluster import groups, machine, state
from kube_cluster.api import Api
from kube_cluster.layout import MASTER, Layout, folder_of, named_nodes
from kube_cluster.state import State

_MIB: Final = 1 << 20


def status(given: Path | None, *, as_json: bool) -> bool:
    """Print it; returns whether all processes live and all nodes are Ready. Errors: BadInput where there is no cluster."""
    layout = Layout(folder_of(given))
    cluster = state.running(layout)
    machine.check_root()
    told = look(cluster)
    print(json.dumps(told, indent=1) if as_json else _text(told))
    return bool(told["whole"])


def look(cluster: State) -> dict[str, Any]:
    """Processes, nodes, memory (bytes, resident; what runs in pods counts for their node)."""
    layout = cluster.layout
    try:
        ready = Api(layout).ready_nodes()
    except OSError:  # its certificates are not made yet, or gone
        ready = set()
    names = [name for _, name in named_nodes(cluster.nodes)]
    processes = {
        process.name: {"pid": process.pid, "alive": process.alive} for process in cluster.processes.values()
    }
    memory = {name: groups.memory_bytes(f"{layout.group}/{name}") for name in (MASTER, *names)}
    alive = bool(processes) and all(process["alive"] for process in processes.values())
    return {
        "dir": cluster.folder,
        "kubeconfig": str(layout.kubeconfig),
        "server": layout.server,
        "network": layout.network,
        "processes": processes,
        "nodes": {name: name in ready for name in names},
        "kwok": {"created": cluster.kwok, "ready": len(ready - set(names))},
        "memory_bytes": memory,
        "whole": alive and cluster.ready and len(ready) >= cluster.nodes + cluster.kwok,
    }


def _text(told: dict[str, Any]) -> str:
    lines = [f"{told['dir']}: {told['server']}, network {told['network']}"]
    for name, process in told["processes"].items():
        lines.append(f"  {name:24} {process['pid']:>8}  {'runs' if process['alive'] else 'has ended'}")
    for name, ready in told["nodes"].items():
        lines.append(
            f"  node {name:19} {'Ready' if ready else 'not Ready'}, {told['memory_bytes'][name] / _MIB:.0f} MiB"
        )
    lines.append(f"  control plane            {told['memory_bytes'][MASTER] / _MIB:.0f} MiB")
    if told["kwok"]["created"]:
        lines.append(
            f"  kwok                     {told['kwok']['ready']} of {told['kwok']['created']} nodes Ready"
        )
    lines.append(told["kubeconfig"])
    return "\n".join(lines)

"""``scripts/kube restart``: a process that is killed and started again, or a node as after a reboot."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from kube_cluster import assets, groups, machine, network, node, state
from kube_cluster.layout import Layout, folder_of, named_nodes
from kube_cluster.processes import ANCHOR, Starter
from unidle.errors import BadInput

_POLL_S: Final = 0.01


def restart(name: str, given: Path | None) -> None:
    """Errors: BadInput for a name that the cluster does not have, UnidleError where it does not start again."""
    layout = Layout(folder_of(given))
    state.running(layout)
    machine.check()
    with state.locked(layout):
        starter = Starter(state.running(layout))
        indexes = {node_name: index for index, node_name in named_nodes(starter.state.nodes)}
        if name in indexes:
            _reboot(starter, indexes[name], name)
        else:
            _again(starter, name)
    print(f"kube: {name} runs again", file=sys.stderr)


def _again(starter: Starter, name: str) -> None:
    """A process with the same options in the same namespaces."""
    process = starter.state.processes.get(name)
    if process is None or name.endswith(f"/{ANCHOR}"):
        known = [known for known in starter.state.processes if not known.endswith(f"/{ANCHOR}")]
        nodes = [node_name for _, node_name in named_nodes(starter.state.nodes)]
        raise BadInput(
            "the cluster has no such process or node",
            field="NAME",
            value=name,
            remedy=f"known: {', '.join([*nodes, *known])}",
        )
    while process.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    starter.start(name, process.node, process.words)


def _reboot(starter: Starter, index: int, name: str) -> None:
    """All processes of the node end, its pods too, and its namespaces with them. What is on its disk stays."""
    layout = starter.layout
    groups.remove(f"{layout.group}/{name}")
    network.disconnect(layout, index)
    node.boot(starter, assets.needed(), index, name)
    node.start_kubelet(starter, index, name)

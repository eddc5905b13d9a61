"""``scripts/kube kill`` and ``restart``: a process, or a node with all its processes, as a power cut and a reboot do."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kube_cluster import assets, groups, machine, network, node, state
from kube_cluster.layout import Layout, folder_of, named_nodes
from kube_cluster.processes import ANCHOR, Starter
from unidle.errors import BadInput

_POLL_S: Final = 0.01


def restart(name: str, given: Path | None) -> None:
    """Errors: BadInput for a name that the cluster does not have, UnidleError where it does not start again."""
    with _starter(given) as starter:
        if index := _node(starter, name):
            _cut(starter.layout, index, name)
            node.boot(starter, assets.needed(), index, name)
            node.start_kubelet(starter, index, name)
        else:
            process = _kill(starter, name)
            starter.start(name, process.node, process.words)
    print(f"kube: {name} runs again", file=sys.stderr)


def kill(name: str, given: Path | None) -> None:
    """It is away until :func:`restart`. Errors: BadInput for a name that the cluster does not have."""
    with _starter(given) as starter:
        if index := _node(starter, name):
            _cut(starter.layout, index, name)
        else:
            _kill(starter, name)
    print(f"kube: {name} is killed", file=sys.stderr)


@contextlib.contextmanager
def _starter(given: Path | None) -> Iterator[Starter]:
    layout = Layout(folder_of(given))
    state.running(layout)
    machine.check()
    with state.locked(layout):
        yield Starter(state.running(layout))


def _node(starter: Starter, name: str) -> int:
    """The index of a node; 0 for what is none."""
    return {node_name: index for index, node_name in named_nodes(starter.state.nodes)}.get(name, 0)


def _kill(starter: Starter, name: str) -> state.Process:
    """The process that has ended; it can be started again with the same options in the same namespaces."""
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
    return process


def _cut(layout: Layout, index: int, name: str) -> None:
    """All processes of the node end, its pods too, and its namespaces with them. What is on its disk stays."""
    groups.remove(f"{layout.group}/{name}")
    network.disconnect(layout, index)

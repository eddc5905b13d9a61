"""``scripts/kube load``: an image for pods of the cluster, as there is no registry."""

from __future__ import annotations

import sys
from pathlib import Path

from kube_cluster import machine, node, state
from kube_cluster.layout import Layout, folder_of, named_nodes
from kube_cluster.processes import Starter
from unidle.errors import BadInput


def load(archive: Path, given: Path | None) -> None:
    """Errors: BadInput for a file that is not there, UnidleError where a node cannot import it."""
    if not archive.is_file():
        raise BadInput(
            "is no file", field="ARCHIVE", value=str(archive), remedy="make it: scripts/kube_image.py"
        )
    layout = Layout(folder_of(given))
    state.running(layout)
    machine.check()
    with state.locked(layout):
        starter = Starter(state.running(layout))
        for _, name in named_nodes(starter.state.nodes):
            node.load_image(starter, name, archive)
            print(f"kube: {name} has the image of {archive.name}", file=sys.stderr)

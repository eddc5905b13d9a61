"""Names, addresses and paths of one cluster. All follow from its directory, but for the network, which has to be free.

| address | of |
|---|---|
| 10.X.0.1 | this machine, on the bridge |
| 10.X.0.2 | the control plane |
| 10.X.0.11 and up | the nodes n1, n2, ... |
| 10.X.N.0/24 | the pods of node N |
| 10.X.255.0/24 | Services; 10.X.255.1 is the API server itself |
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.errors import BadInput

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_NODES: Final = 100
MOST_KWOK: Final = 20_000
API_PORT: Final = 443
"""The API server's own: as it has the address of the Service ``kubernetes``, pods reach it without kube-proxy."""
MASTER: Final = "cp"
"""Name of the namespace with etcd, the API server, its controllers, the scheduler and kwok."""
IMAGE: Final = "unidle.dev/kube-tool:1"
"""The image of every node: of the sandboxes of pods, and for the pods of tests."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of the cluster in ``folder`` is. ``octet`` is the X of its addresses."""

    folder: Path
    octet: int = 0

    @property
    def id(self) -> str:
        """Eight hexadecimal digits, in the name of each thing that the kernel knows."""
        return hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]

    @property
    def bridge(self) -> str:
        return f"udk-{self.id}"

    @property
    def group(self) -> str:
        """Name of its control group, at the top of each hierarchy."""
        return f"unidle-kube-{self.id}"

    def port(self, index: int) -> str:
        """The end on this machine of the link of node ``index``; 0 is the control plane."""
        return f"udk{self.id}-{index}"

    @property
    def host(self) -> str:
        return f"10.{self.octet}.0.1"

    @property
    def network(self) -> str:
        return f"10.{self.octet}.0.0/16"

    @property
    def service_range(self) -> str:
        return f"10.{self.octet}.255.0/24"

    @property
    def api_service(self) -> str:
        """Address of the Service ``kubernetes``: the first of its range."""
        return f"10.{self.octet}.255.1"

    def address(self, index: int) -> str:
        return f"10.{self.octet}.0.{10 + index if index else 2}"

    def pods(self, index: int) -> str:
        return f"10.{self.octet}.{index}.0/24"

    @property
    def server(self) -> str:
        return f"https://{self.address(0)}:{API_PORT}"

    @property
    def state(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def image(self) -> Path:
        return self.folder / "image.tar"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def master(self) -> Path:
        """Files of the control plane."""
        return self.folder / MASTER

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    @property
    def audit(self) -> Path:
        """One line of JSON for each request of a service account."""
        return self.folder / "logs" / "audit.log"

    def log(self, process: str) -> Path:
        return self.folder / "logs" / f"{process.replace('/', '-')}.log"


OWN_ENTRIES: Final = ("cluster.json", "kubeconfig", "image.tar", "pki", MASTER, "nodes", "logs", "lock")
"""What ``up`` makes in the directory of a cluster, and ``down`` removes."""


def named_nodes(count: int) -> Iterator[tuple[int, str]]:
    """Index and name of each node."""
    return ((index, f"n{index}") for index in range(1, count + 1))


def folder_of(given: Path | None) -> Path:
    """The directory of a cluster: the one given, else ``.cache/kube`` of the checkout."""
    folder = Path(os.path.realpath(given if given is not None else ROOT / ".cache" / "kube"))
    if any(ord(sign) < ord(" ") or sign in ',:"\\' for sign in str(folder)):
        raise BadInput(
            "a control character, comma, colon, quote or backslash cannot be in the path of a cluster",
            field="--dir",
            value=str(folder),
            remedy="choose another directory",
        )
    return folder

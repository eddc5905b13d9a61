"""One cluster, and one identity there: what a client is made of, wherever it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unidle.kube.credentials import Credentials, Fixed


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """One cluster, and one identity there. ``source`` names where it was found, for messages."""

    server: str  # URL, without a slash at its end
    namespace: str = "default"
    source: str = ""
    authority: bytes | Path | None = None  # PEM, or a file of it; None: those of this machine
    insecure: bool = False
    server_name: str = ""  # of the certificate; empty: the host of ``server``
    proxy: str = ""  # http://host:port
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials = field(default_factory=Fixed)

"""A few requests to the API server of a cluster, as its administrator."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kube_cluster.layout import API_PORT, Layout
from unidle.errors import UnidleError

_TIMEOUT_S = 10.0
_PAGE = 1000


class Api:
    """Requests over one connection for each thread. A server that cannot be reached is an OSError."""

    def __init__(self, layout: Layout) -> None:
        self._host = layout.address(0)
        self._context = ssl.create_default_context(cafile=layout.pki / "ca.crt")
        self._context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        self._own = threading.local()

    def ready(self) -> bool:
        try:
            status, _ = self.ask("GET", "/readyz")
        except OSError:
            return False
        return status == http.HTTPStatus.OK

    def exists(self, path: str) -> bool:
        try:
            return self.ask("GET", path)[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def create(self, path: str, told: dict[str, Any]) -> None:
        """Errors: UnidleError with the server's answer, unless the object exists already."""
        status, answer = self.ask("POST", path, told)
        if status not in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT):
            raise UnidleError(
                f"the API server refused {path}: {status} {answer.decode(errors='replace')[:500]}"
            )

    def nodes(self) -> Iterator[dict[str, Any]]:
        """All nodes, read in pages."""
        more = ""
        while True:
            status, answer = self.ask("GET", f"/api/v1/nodes?limit={_PAGE}&continue={more}")
            if status != http.HTTPStatus.OK:
                raise UnidleError(f"the API server does not list nodes: {status}")
            page = json.loads(answer)
            yield from page["items"]
            if not (more := page["metadata"].get("continue", "")):
                return

    def ready_nodes(self) -> set[str]:
        """Names of the nodes that are Ready; none while the server cannot be reached."""
        try:
            return {node["metadata"]["name"] for node in self.nodes() if _ready(node)}
        except (OSError, UnidleError):
            return set()

    def ask(self, method: str, path: str, told: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = self._connection()
        try:
            body = None if told is None else json.dumps(told).encode()
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            del self._own.connection
            raise OSError(str(error)) from error

    def _connection(self) -> http.client.HTTPSConnection:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPSConnection(
                self._host, API_PORT, timeout=_TIMEOUT_S, context=self._context
            )
        connection: http.client.HTTPSConnection = self._own.connection
        return connection


def _ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def write_text(path: Path, text: str) -> None:
    """A file with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

"""The store of a cluster's controller, read through the API server: ``kubernetes://CONTEXT``.

Statements go to the controller, which carries out those that read, each found by its text. Requests go to its inbox under
the user's name in the cluster. Nothing else can be changed from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from unidle.errors import BadInput, StoreError
from unidle.kube.commands import SERVICE, CommandCalls, CommandTarget
from unidle.store.database import Params, RowTuple
from unidle.store.protocol import Lease
from unidle.store.sql import SqlStore

SCHEME: Final = "kubernetes"
SERVICE_VARIABLE: Final = "UNIDLE_KUBE_SERVICE"


def cluster_address(kubeconfig: str | None, context: str | None) -> str:
    """The address of the store of a cluster, as options name it. The Service is that of the environment, if it names one."""
    return address_of_target(CommandTarget(kubeconfig, context, os.environ.get(SERVICE_VARIABLE) or SERVICE))


def address_of_target(target: CommandTarget) -> str:
    """The address of the store of this controller."""
    named = target.service != SERVICE or bool(os.environ.get(SERVICE_VARIABLE))
    service = target.service if named else None
    query = {"kubeconfig": target.kubeconfig, "service": service}
    given = {name: value for name, value in query.items() if value}
    return f"{SCHEME}://{quote(target.context or '', safe='')}" + (
        f"?{urlencode(given, safe='/')}" if given else ""
    )


def target_of(address: str) -> CommandTarget:
    """What an address names. Errors: BadInput."""
    parts = urlsplit(address)
    found = dict(parse_qsl(parts.query))
    if parts.path not in ("", "/") or found.keys() - {"kubeconfig", "service"}:
        raise BadInput(
            "is not the address of a cluster", field="store", value=address,
            remedy="give kubernetes://CONTEXT?kubeconfig=FILE&service=NAMESPACE/NAME, each part as needed",
        )  # fmt: skip
    service = found.get("service") or os.environ.get(SERVICE_VARIABLE) or SERVICE
    # the parser would make the host lower case
    context = unquote(address.partition("://")[2].partition("?")[0].rstrip("/"))
    return CommandTarget(found.get("kubeconfig"), context or None, service)


class ClusterDatabase:
    """A :class:`unidle.store.database.Database` behind a controller."""

    signs_requests = True
    types: Mapping[str, str] = {}

    def __init__(self, address: str) -> None:
        self.url = address
        self.calls = CommandCalls(target_of(address))
        self._user: str | None = None

    def user(self) -> str:
        """The user in the cluster."""
        if self._user is None:
            self._user = str(self.calls.call("hello")["user"])
        return self._user

    def owned_by(self, user: str) -> bool:  # noqa: ARG002
        """Never: its owner is the controller's."""
        return False

    def query(self, sql: str, params: Params = ()) -> list[RowTuple]:
        return [tuple(row) for row in self.calls.call("query", statement=sql, params=list(params))]

    def request(self, kind: str, body: bytes) -> int:
        """The number of the request in the inbox."""
        return int(self.calls.call("request", kind=kind, body=body))

    def execute(self, sql: str, params: Params = ()) -> int:  # noqa: ARG002
        self._refuse()

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:  # noqa: ARG002
        self._refuse()

    def insert(self, sql: str, params: Params) -> int:  # noqa: ARG002
        self._refuse()

    def transaction(self) -> AbstractContextManager[None]:
        self._refuse()

    def tables(self) -> set[str]:
        return set(self.calls.call("tables"))

    def verify(self) -> None:
        """Each call goes to the controller that is there now."""

    def reconnect(self) -> None:
        """Each call connects as it has to."""

    def another(self) -> ClusterDatabase:
        return ClusterDatabase(self.url)

    def problems(self) -> list[str]:
        self._refuse()

    def vacuum(self) -> None:
        self._refuse()

    def size_bytes(self) -> int:
        self._refuse()

    def lock_tables(self) -> None:
        self._refuse()

    def close(self) -> None:
        self.calls.close()

    def _refuse(self) -> NoReturn:
        raise StoreError(
            "the store of a cluster is written by its controller alone", field=self.url,
            remedy="run the command where the controller runs, with its --store",
        )  # fmt: skip


class ClusterStore(SqlStore):
    """A store to read, with an inbox."""

    def __init__(self, database: ClusterDatabase) -> None:
        super().__init__(database, read_only=True)
        self.calls = database.calls
        self._request = database.request

    def request(self, kind: str, body: bytes) -> int:
        return self._request(kind, body)

    def acquire(self, purpose: str) -> Lease:
        raise StoreError(
            f"{purpose} cannot drive the store of a cluster: its controller does", field=self.url,
            remedy="see whether the controller runs: kubectl get pods -A -l app.kubernetes.io/name=unidle",
        )  # fmt: skip


def calls_of(store: Any) -> CommandCalls | None:
    """How to call the controller of a store that is a cluster's; None for any other."""
    return store.calls if isinstance(store, ClusterStore) else None

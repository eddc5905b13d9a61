"""What all controllers of one store show to boxes and agents: the hub's secret and authority, in one Secret of the cluster.

A box trusts one authority, and its pod's place has a token that follows from the secret. With files of its own a second
controller would be a stranger to what the first one started.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

import msgspec

from unidle import atomic, private
from unidle.errors import CannotRun
from unidle.hub.place import FOLDER
from unidle.kube.objects import SECRETS
from unidle.kube.protocol import ApiRequest, Client

FILES: Final = ("secret", "ca.pem", "ca.key")
_MOST_BYTES: Final = 64 << 10


class _Secret(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


class HubSecret:
    """The Secret ``NAMESPACE/NAME``, which has to be there: the only rights are to get and to patch this one object."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._has_all = False

    def close(self) -> None:
        self._client.close()

    def fetch(self, state: Path) -> None:
        """Write what it has into STATE/hub, before the hub opens. Errors: KubeError; CannotRun; ``private.NotPrivate``."""
        found = msgspec.json.decode(
            self._client.read(SECRETS, self._name, self._namespace), type=_Secret
        ).data
        self._has_all = all(found.get(name) for name in FILES)
        if not self._has_all:
            return
        folder = private.open_folder(os.fspath(state / FOLDER), create=True, private=True)
        try:
            for name in FILES:
                with atomic.replaced(name, at=folder, durable=True) as file:
                    file.write(b64decode(found[name]))
        except ValueError as error:
            raise CannotRun(
                f"has an entry that cannot be read: {error}", field=f"secret {self._namespace}/{self._name}",
                remedy="empty it, and have all hosts and pods of the store made again",
            ) from None  # fmt: skip
        finally:
            os.close(folder)

    def store(self, state: Path) -> None:
        """Put in what the hub has made, unless it was there. For the controller that has the store's lease. Errors: KubeError."""
        if self._has_all:
            return
        folder = private.open_folder(os.fspath(state / FOLDER))
        try:
            data = {name: b64encode(private.read(name, folder, _MOST_BYTES)).decode() for name in FILES}
        finally:
            os.close(folder)
        path = SECRETS.path(self._namespace, self._name)
        self._client.call(
            ApiRequest(
                "patch", "PATCH", path, f"{SECRETS} {self._namespace}/{self._name}",
                body=msgspec.json.encode({"data": data}), content_type="application/merge-patch+json",
            )
        )  # fmt: skip
        self._has_all = True

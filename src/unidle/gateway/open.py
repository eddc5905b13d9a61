"""The gateway of one controller: its client, its users, and its server."""

from __future__ import annotations

from unidle.control.hosts import HostsSession
from unidle.control.kube import KubeWish, access_of
from unidle.gateway.calls import Calls
from unidle.gateway.identity import Identities
from unidle.gateway.server import CommandServer
from unidle.kube.client import ApiClient, open_client


class Gateway:
    """Serves until it is closed. ``addresses``: where it listens."""

    def __init__(self, client: ApiClient, server: CommandServer) -> None:
        self._client, self._server = client, server
        self.addresses = server.addresses

    def close(self) -> None:
        self._server.close()
        self._client.close()


def open_gateway(listen: str, address: str, hosts: HostsSession, wish: KubeWish) -> Gateway:
    """Listen on ``HOST:PORT`` for commands. ``address``: of the store. Errors: BadInput, CannotRun."""
    client = open_client(access_of(wish), patience_s=0.0, agent="unidle-gateway")
    try:
        identities = Identities(client, wish.namespace or client.namespace)
        calls = Calls(address, hosts.state, identities)
        return Gateway(client, CommandServer(listen, hosts.tls, calls, identities))
    except BaseException:
        client.close()
        raise

"""Where the hub is, written into the ConfigMap from which agents read it. Nothing in it is secret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from unidle.engine.hosts.timing import S
from unidle.kube.objects import CONFIG_MAPS
from unidle.kube.protocol import KubeWriter, Patch, WriteDone, WriteRefused, WriteResult

AGAIN_NS: Final = 300 * S
"""So often it is written again: an entry that others changed is corrected so."""
_REFUSED_NS: Final = 30 * S


@dataclass(slots=True)
class HubAddressNote:
    """``where``: namespace and name of the ConfigMap, which has to be there: the only right is to patch this one object.

    ``say`` is called with a line why agents find no hub, once until that is over.
    """

    writer: KubeWriter
    where: tuple[str, str]
    address: tuple[str, int]
    authority: str
    say: Callable[[str], None]
    _due_ns: int = 0
    _pending: bool = False
    _said: str = field(default="")

    def act(self, now_ns: int) -> None:
        """Write it where that is due."""
        if self._pending or now_ns < self._due_ns:
            return
        host, port = self.address
        data = {
            "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "authority": self.authority,
        }
        self._pending = True
        self.writer.write(Patch(CONFIG_MAPS, *self.where, {"data": data}))

    def written(self, result: WriteResult, now_ns: int) -> None:
        """What became of a write of the controller."""
        write = result.write
        if not isinstance(write, Patch) or write.kind is not CONFIG_MAPS:
            return
        if isinstance(result, WriteDone):
            self._pending, self._due_ns, self._said = False, now_ns + AGAIN_NS, ""
        elif isinstance(result, WriteRefused):
            self._pending, self._due_ns = False, now_ns + _REFUSED_NS
            self._say_once(result.error.problem)

    def _say_once(self, problem: str) -> None:
        if problem != self._said:
            self._said = problem
            name = "/".join(self.where)
            self.say(
                f"agents do not find the controller: ConfigMap {name} cannot be written: {problem}; install it, and "
                f'grant the controller "patch configmaps" on it, as the chart does'
            )

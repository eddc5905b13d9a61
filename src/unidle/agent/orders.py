"""Checks and hooks that the controller orders for this host: processes of their own, each name once.

A check, of the host or of links to other hosts, is always unidle's own. A hook is a command of the site, and runs only where this host's operator allows that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from unidle.engine.local.commands.runner import CommandRunner, check_words, link_words
from unidle.engine.node_commands import LinkCheck, NodeCheck
from unidle.fleet.policies import Between, LinkMethod
from unidle.hub import frames

NO_HOOKS: Final = "this agent runs no hooks: start it with --hooks allow"
_MOST_RUNNING: Final = 16
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")]
_Word = Annotated[str, msgspec.Meta(max_length=8192, pattern=r"\A[^\0]*\Z")]


class CheckOrder(msgspec.Struct, frozen=True):
    """Body of ``run what=check``. ``log_since_ns``: by this host's CLOCK_BOOTTIME, see :class:`NodeCheck`."""

    name: _Name
    limit_ns: frames.TimeNs
    tier: Literal["quick", "standard", "burn-in"] = "quick"
    log_since_ns: frames.TimeNs | None = None
    used: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=512)] = ()


class HookOrder(msgspec.Struct, frozen=True):
    """Body of ``run what=hook``. ``words``: program and arguments, run without a shell."""

    name: _Name
    limit_ns: frames.TimeNs
    words: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1, max_length=256)]


_Address = Annotated[str, msgspec.Meta(max_length=255, pattern=r"\A[^\0]*\Z")]


_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class LinkPolicy(msgspec.Struct, frozen=True):
    """As :class:`unidle.fleet.policies.Between`."""

    least_mbps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    measure_ns: Annotated[int, msgspec.Meta(ge=50_000_000, le=600_000_000_000)] = Between().measure_ns
    method: LinkMethod = "tcp"
    ports: tuple[_Port, _Port] | None = None


class LinksOrder(msgspec.Struct, frozen=True):
    """Body of ``run what=links``: this host's part of a check between nodes, see :class:`LinkCheck`."""

    name: _Name
    limit_ns: frames.TimeNs
    rank: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    world: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)]
    address: _Address
    port: _Port
    secret: Annotated[str, msgspec.Meta(max_length=256, pattern=r"\A[^\0]*\Z")]
    policy: LinkPolicy = LinkPolicy()


_FORMS: Final[dict[str, type[CheckOrder | HookOrder | LinksOrder]]] = {
    "check": CheckOrder, "hook": HookOrder, "links": LinksOrder,
}  # fmt: skip


class Orders:
    """``root`` has a directory for each name. Orders outlive the agent: the next one finds them there.

    ``hooks``: whether hooks run on this host. ``kernel_log``: the log that checks read; empty: the default. ``whole_node``: as of
    :class:`NodeCheck`.
    """

    def __init__(
        self, root: Path, node: str, *, hooks: bool, kernel_log: str = "", whole_node: bool = False
    ) -> None:
        self._runner, self._node, self._hooks = CommandRunner(root), node, hooks
        self._kernel_log, self._whole_node = kernel_log, whole_node
        self._awaited: dict[int, str] = {}  # by command
        self._running: set[str] = set()

    def take(self, command: int, what: str, body: dict[str, Any]) -> str:
        """Run an order, or find that it runs or has ended: :meth:`ended` answers the command. Else why it is not run."""
        try:
            if what not in _FORMS:
                return f"{what!r} is unknown to this release"
            order = msgspec.convert(body, _FORMS[what])
        except msgspec.ValidationError as error:
            return f"the order is not as agreed: {error}"
        if not self._runner.knows(order.name):
            if isinstance(order, HookOrder) and not self._hooks:
                return NO_HOOKS
            if len(self._running) >= _MOST_RUNNING:
                return f"{_MOST_RUNNING} orders run already"
            words, env = self._words(order)
            self._runner.begin(order.name, words, order.limit_ns, env)
        self._running.add(order.name)
        self._awaited[command] = order.name
        return ""

    def _words(self, order: CheckOrder | HookOrder | LinksOrder) -> tuple[tuple[str, ...], dict[str, str]]:
        if isinstance(order, HookOrder):
            return order.words, {}
        if isinstance(order, LinksOrder):
            terms = order.policy
            policy = Between(terms.least_mbps, terms.measure_ns, terms.method, ports=terms.ports)
            there = (order.address, order.port, order.secret)
            return link_words(self._node, LinkCheck(order.rank, order.world, *there, policy))
        what = NodeCheck(
            order.tier, order.log_since_ns, order.used, self._kernel_log, whole_node=self._whole_node
        )
        return check_words(self._node, what, 0), {}

    @property
    def is_busy(self) -> bool:
        """Whether an order runs for which an answer is awaited."""
        return bool(self._awaited)

    def lost(self) -> None:
        """The connection is over: what was asked on it is asked again on the next one, by name."""
        self._awaited = {}

    def ended(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Commands whose order has ended, each once, with the data of the answer."""
        for name in sorted(self._running):
            if (outcome := self._runner.look(name)) is None:
                continue
            self._running.discard(name)
            data = {
                "name": name, "code": outcome.code, "late": outcome.late, "text": outcome.text,
                "restarted": outcome.restarted,
            }  # fmt: skip
            for command in [number for number, of in self._awaited.items() if of == name]:
                del self._awaited[command]
                yield command, data

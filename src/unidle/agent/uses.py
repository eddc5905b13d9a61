"""Whether the devices of gangs on this host are used, measured for a controller that asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from unidle.agent.held_ranks import HeldProcess, Key
from unidle.clock import Bell, boottime_ns
from unidle.engine.protocol import Utilised, WatchGang
from unidle.fleet import Fleet, Node

_LOOK_EVERY_S: Final = 0.25

Live = Mapping[Key, Mapping[int, HeldProcess]]


class Uses:
    """Measures in a thread of its own, because a driver may not answer. ``live``: the ranks that are there."""

    def __init__(self, node: Node, live: Callable[[], Live]) -> None:
        from unidle.engine.local.vitals.utilisation import Utilisation

        self._live = live
        self._uses = Utilisation(Fleet(nodes=(node,)), self._ranks)
        self._lock = threading.Lock()
        self._orders: list[WatchGang | None] = []  # None: report all once more
        self._found: list[Utilised] = []
        self._end = Bell()
        self._thread = threading.Thread(target=self._run, name="unidle-uses", daemon=True)
        self._thread.start()

    def watch(self, body: dict[str, Any]) -> None:
        """Begin to measure, or cease to. Errors: msgspec.ValidationError for an order that is not as agreed."""
        command = msgspec.convert(body, WatchGang)
        with self._lock:
            self._orders.append(command)

    def lost(self) -> None:
        """The connection broke: what is known is reported again."""
        with self._lock:
            self._orders.append(None)
            self._found.clear()

    def take(self) -> list[dict[str, Any]]:
        """Bodies of ``seen what=use``: what changed since the last call."""
        with self._lock:
            found, self._found = self._found, []
        return [msgspec.to_builtins(one) for one in found]

    def close(self) -> None:
        """End the thread; one that waits for a driver is left behind."""
        self._end.ring()
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._end.close()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
            with self._lock:
                orders, self._orders = self._orders, []
            for command in orders:
                if command is None:
                    self._uses.repeat()
                else:
                    self._uses.watch(command)
            if found := self._uses.poll(boottime_ns()):
                with self._lock:
                    self._found += found

    def _ranks(self, key: Key | None) -> Sequence[HeldProcess]:
        live = self._live()
        chosen = live.values() if key is None else [live.get(key, {})]
        return [held for ranks in chosen for held in ranks.values()]

"""What the ranks of this host do, for the controller to judge: the sampler of one machine, and its looks as frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from unidle import wire
from unidle.agent.held_ranks import HeldProcess, Key
from unidle.engine.local.vitals.reachability import Reachability
from unidle.jobs.vitals import GangVitals, continued

_BODY_BYTES: Final = wire.FRAME_BYTES // 2


class Vitals:
    """Follows ranks in a thread of its own, while there are any. Times are of this host's CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self._followed: dict[Key, dict[int, int]] = {}
        self._waiting: dict[Key, GangVitals] = {}  # not sent: one look that grows

        from unidle.engine.local.vitals.sampler import VitalsWatch

        self._watch = VitalsWatch(0, lambda: Reachability({}, {}), outside=True)

    def follow(self, live: Mapping[Key, Mapping[int, HeldProcess]]) -> None:
        """These are the ranks that are alive."""
        wanted = {key: {rank: held.pid for rank, held in ranks.items()} for key, ranks in live.items()}
        for key in self._followed.keys() - wanted.keys():
            self._watch.forget(key)
            self._waiting.pop(key, None)
        for key, pids in wanted.items():
            if self._followed.get(key) != pids:
                self._watch.follow(key, pids, ())
        self._followed = wanted

    def take(self, *, connected: bool) -> Iterator[dict[str, Any]]:
        """Bodies of ``seen what=vitals``. What is seen without a connection becomes part of the next one."""
        for seen in self._watch.take():
            key = (seen.job, seen.attempt)
            if key in self._followed:
                before = self._waiting.get(key)
                self._waiting[key] = seen if before is None else continued(before, seen)
        if connected:
            waiting, self._waiting = self._waiting, {}
            yield from map(_body, waiting.values())

    def close(self) -> None:
        """End the thread."""
        self._watch.close()


def _body(seen: GangVitals) -> dict[str, Any]:
    body = _plain(seen)
    if len(msgspec.json.encode(body)) > _BODY_BYTES:  # thousands of connections: without them
        body["links_read"] = False
        for rank in body["ranks"]:
            rank.pop("links", None)
            rank.pop("ends", None)
    return body


def _plain(seen: GangVitals) -> dict[str, Any]:
    """As JSON, without what has its default."""
    body: dict[str, Any] = msgspec.to_builtins(seen)
    body["ranks"] = [
        {name: value for name, value in rank.items() if value or name in ("rank", "since_ns")}
        for rank in body["ranks"]
    ]
    return body

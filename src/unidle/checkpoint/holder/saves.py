"""Saves under way: this node's shards on their way to storage, and (with rank 0) which shards have arrived."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

from unidle.checkpoint import layout
from unidle.checkpoint.holder import hold_paths, wire
from unidle.checkpoint.holder import storage as disk
from unidle.checkpoint.holder.attempts import Superseded
from unidle.checkpoint.holder.memory_copies import Label
from unidle.checkpoint.holder.wire import Address, Gone, Message
from unidle.checkpoint.layout import Damaged, Shard

PATIENCE_S: Final = 900.0  # for the shards of other nodes, after the first has arrived
_NICE: Final = 10


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Write one copy to storage, then tell the holder of rank 0 (``lead``; None: that is this one)."""

    slot: int
    name: str
    label: Label
    lead: Address | None
    done: Callable[[int], None]


@dataclass(slots=True)
class _Save:
    """What has arrived of one checkpoint."""

    world: int
    begun_s: float
    shards: dict[int, Shard] = field(default_factory=dict)


class Saves:
    """Writes shards in one thread; joins them to checkpoints and tests those in another.

    ``tell(message)`` goes to rank 0 if it lives: ``stored``, ``good``, ``bad`` or ``failed``, with the step.
    ``refusal()`` is why no checkpoint may be finished, empty while it may; it may raise OSError.
    """

    def __init__(
        self, storage: str, hold: str, tell: Callable[[Message], None], refusal: Callable[[], str]
    ) -> None:
        self._storage, self._hold, self._tell, self._refusal = storage, hold, tell, refusal
        self._orders: queue.SimpleQueue[SaveOrder] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._saves: dict[tuple[str, int], _Save] = {}
        self._failed: set[tuple[str, int]] = set()
        self._tests: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._open = 0  # orders and tests that are not done
        self.options: Message = {"keep": 2, "keep_every": 0, "restore_test": "load"}
        threading.Thread(target=self._write, daemon=True, name="writer").start()
        threading.Thread(target=self._test, daemon=True, name="tester").start()

    @property
    def busy(self) -> bool:
        with self._lock:
            return self._open > 0 or bool(self._saves)

    def add(self, order: SaveOrder) -> None:
        with self._lock:
            self._open += 1
        self._orders.put(order)

    def sweep(self) -> None:
        """Remove unfinished checkpoints that no save writes any more."""
        with self._lock:
            names = {layout.partial_name(step, session) for session, step in self._saves}
        disk.sweep(self._storage, names)

    def give_up_late(self) -> None:
        """Fail saves whose shards will not come."""
        now_s = time.monotonic()
        with self._lock:
            late = [key for key, save in self._saves.items() if now_s > save.begun_s + PATIENCE_S]
        for session, step in late:
            self.failed(session, step, -1, f"not all shards came within {PATIENCE_S:.0f} s")

    def begin(self, session: str, step: int, world: int) -> None:
        """Rank 0 has ordered a save; from here on it counts as under way."""
        with self._lock:
            self._saves.setdefault((session, step), _Save(world, time.monotonic()))

    def arrived(self, session: str, step: int, world: int, shard: Shard) -> None:
        """A shard is durable and was read back. The last one completes the checkpoint."""
        key = (session, step)
        with self._lock:
            dropped = key in self._failed
            shards = [] if dropped else self._whole(key, world, shard)
            self._open += bool(shards)
        if dropped:
            disk.discard(self._storage, session, step)
        if not shards:
            return
        try:
            path = disk.finish(self._storage, session, step, shards, self._refusal)
        except (OSError, Superseded) as error:
            with self._lock:
                self._open -= 1
            self.failed(session, step, -1, self._reason(error))
            return
        with self._lock:
            del self._saves[key]
        self._tell({"event": "stored", "step": step, "path": path})
        self._tests.put((step, path))

    def _whole(self, key: tuple[str, int], world: int, shard: Shard) -> list[Shard]:
        """All shards of a save, once this one is the last."""
        save = self._saves.setdefault(key, _Save(world, time.monotonic()))
        save.shards[shard.rank] = shard
        return list(save.shards.values()) if len(save.shards) >= world else []

    def failed(self, session: str, step: int, rank: int, why: str) -> None:
        """A shard could not be written: the whole checkpoint is dropped, once."""
        with self._lock:
            key = (session, step)
            self._saves.pop(key, None)
            known = key in self._failed
            self._failed.add(key)
        disk.discard(self._storage, session, step)  # again for each shard, which creates the directory again
        if known:
            return
        who = f"rank {rank}: " if rank >= 0 else ""
        self._tell({"event": "failed", "step": step, "why": who + why})

    # ---- threads

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # training first
        while True:
            order = self._orders.get()
            label = order.label
            news: Message = {
                "do": "shard",
                "session": label.session,
                "step": label.step,
                "world": label.world,
            }
            try:
                with hold_paths.held(self._hold) as hold:
                    fd = hold_paths.open_copy(order.name, hold)
                try:
                    shard = disk.write_shard(self._storage, label, fd)
                finally:
                    os.close(fd)
                news["shard"] = asdict(shard)
            except (OSError, Damaged) as error:
                news |= {"do": "shard_failed", "rank": label.rank, "why": self._reason(error)}
            self._report(order.lead, news)
            order.done(order.slot)
            with self._lock:
                self._open -= 1

    def _report(self, lead: Address | None, news: Message) -> None:
        if lead is None:
            self.hear(news)
            return
        with (
            contextlib.suppress(Gone, OSError),
            wire.connect(wire.newest(self._storage, lead)) as link,
        ):  # without rank 0's holder there is no checkpoint
            wire.ask(link, news)

    def _reason(self, error: Exception) -> str:
        """Why a save failed. A newer attempt takes the files of an older one away, which then are not there."""
        why = ""
        with contextlib.suppress(OSError):
            why = self._refusal()
        return why or _words(error)

    def hear(self, news: Message) -> None:
        """Handle a holder's report of one shard."""
        if news["do"] == "shard":
            shard = news["shard"]
            found = Shard(shard["name"], shard["rank"], shard["size_bytes"], tuple(shard["crcs"]))
            self.arrived(news["session"], news["step"], news["world"], found)
        else:
            self.failed(news["session"], news["step"], news["rank"], news["why"])

    def _test(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            step, path = self._tests.get()
            why = disk.restore_test(path, str(self.options["restore_test"]))
            if why is None:
                self._tell({"event": "good", "step": step, "path": path})
                with contextlib.suppress(OSError):
                    disk.retain(self._storage, int(self.options["keep"]), int(self.options["keep_every"]))
            else:
                self._tell({"event": "bad", "step": step, "path": path, "why": why})
            with self._lock:
                self._open -= 1


def _words(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)

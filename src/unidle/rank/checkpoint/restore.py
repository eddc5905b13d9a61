"""Where to resume: the newest complete step, in memory or on storage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from unidle.checkpoint.find import candidates
from unidle.checkpoint.holder import memory_copies, wire
from unidle.checkpoint.holder.memory_copies import Label
from unidle.checkpoint.holder.wire import Address, Gone
from unidle.checkpoint.layout import Damaged, is_partial, read_manifest
from unidle.checkpoint.verify import verify_shard
from unidle.rank.checkpoint.reader import HeldShard, RemoteShard, ShardSet, ShardSource, stored

_Copy = tuple[Address, str, Label]


@dataclass(frozen=True, slots=True)
class RestoreOffer:
    """A complete checkpoint that can be loaded: on storage (``path``), or in memory: the places of each rank's
    copy.
    """

    step: int
    world: int
    path: str = ""
    places: tuple[tuple[_Copy, ...], ...] = ()

    @property
    def name(self) -> str:
        return self.path or f"the copies of step {self.step} in memory"


def offers(storage: str, own: Address, tell: Callable[[str], None]) -> list[RestoreOffer]:
    """All complete checkpoints, newest first, memory before storage. Unreadable ones are reported."""
    found = in_memory(
        _inventories([own, *(a for a in wire.published(storage) if a.name != own.name)], own.name)
    )
    for path in candidates(storage):
        if not os.path.isdir(path) or is_partial(os.path.basename(path)):
            continue
        try:
            manifest = read_manifest(path)
        except (Damaged, OSError) as error:
            tell(f"{path} is bad and is skipped: {error}")
            continue
        found.append(RestoreOffer(manifest.step, manifest.world, path))
    return sorted(found, key=lambda offer: (-offer.step, bool(offer.path)))


def in_memory(copies: list[_Copy]) -> list[RestoreOffer]:
    """Steps for which a copy of every rank exists."""
    sets: dict[tuple[str, int, int], dict[int, list[_Copy]]] = {}
    for copy in copies:
        label = copy[2]
        sets.setdefault((label.session, label.step, label.world), {}).setdefault(label.rank, []).append(copy)
    return [
        RestoreOffer(step, world, places=tuple(tuple(ranks[rank]) for rank in range(world)))
        for (_, step, world), ranks in sets.items()
        if len(ranks) == world
    ]


def _inventories(addresses: list[Address], own: str) -> list[_Copy]:
    """What the holders have; one that does not answer has nothing."""
    found: list[_Copy] = []

    def look(address: Address) -> None:
        try:
            with wire.connect(address.on_this_host() if address.name == own else address) as link:
                link.settimeout(wire.CONNECT_S)
                answer, _ = wire.ask(link, {"do": "inventory"})
            copies = {name: memory_copies.label_of(label) for name, label in answer["copies"].items()}
            found.extend(
                (address, name, label) for name, label in copies.items() if memory_copies.session_of(name)
            )
        except (Gone, OSError, KeyError, TypeError, ValueError, AttributeError):
            return

    threads = [threading.Thread(target=look, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * wire.CONNECT_S)
    return sorted(found, key=lambda copy: (copy[2].rank, copy[1], copy[0].name))


def opened(offer: RestoreOffer, hold: str) -> ShardSet:
    """The shards of an offer; copies of this node's memory are read directly. Raises :class:`Damaged`, OSError."""
    if offer.path:
        return stored(offer.path)[1]
    return ShardSet([_source(places, hold) for places in offer.places])


def _source(places: tuple[_Copy, ...], hold: str) -> ShardSource:
    own = os.path.basename(hold)
    problem = "no node has it"
    for address, name, label in sorted(places, key=lambda place: place[0].name != own):
        try:
            if address.name == own:
                return HeldShard(os.path.join(hold, name), label)
            return RemoteShard(address, name, label)
        except (Damaged, OSError) as error:
            problem = str(error)
    raise Damaged(f"the copy of rank {places[0][2].rank} cannot be read: {problem}")


def check_part(offer: RestoreOffer, rank: int, world: int) -> None:
    """Read this rank's part of all shards on storage and compare checksums. Raises :class:`Damaged`, OSError."""
    if offer.path:
        manifest = read_manifest(offer.path)
        for shard in manifest.shards[rank::world]:
            verify_shard(offer.path, shard)

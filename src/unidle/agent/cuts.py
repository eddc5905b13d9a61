"""Parts of this host's devices: what can be cut, and what is made and freed for the controller's gangs.

It is done by the local engine's :class:`Slicer`. Orders are worked off one after the other in a thread of their own, as a
driver or the start of a daemon may take seconds. What attempts hold is on the disk, and outlives the agent.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from unidle import wire
from unidle.engine.local.devices.slicing import Grant, Slicer, SliceWish, local_slicer
from unidle.engine.local.ranks import cgroups, rundir
from unidle.engine.protocol import PartOf
from unidle.errors import UnidleError
from unidle.fleet import PART_MODES, Device, Fleet, Node, Sharing
from unidle.hub import frames
from unidle.jobs import RankPlace, Share

ORDERS: Final = frozenset({wire.SLICES, wire.SLICES_HELD})
"""The orders of a hub that are for this part of the agent."""
_MOST: Final = 16_384


class SlicesOrder(msgspec.Struct, frozen=True):
    """Make what ranks of an attempt get of this host's devices. ``devices``: as the controller has them, with their slices."""

    job: frames.Name
    attempt: frames.Ordinal
    places: Annotated[tuple[RankPlace, ...], msgspec.Meta(min_length=1, max_length=_MOST)]
    devices: Annotated[tuple[Device, ...], msgspec.Meta(max_length=_MOST)]
    share: Share | None = None
    parts: Annotated[dict[str, PartOf], msgspec.Meta(max_length=_MOST)] = {}


class HeldOrder(msgspec.Struct, frozen=True):
    """These attempts, as job and number, may hold parts here; what others held is freed."""

    attempts: tuple[tuple[frames.Name, frames.Ordinal], ...] = ()


Answer = tuple[int, str, dict[str, Any]]
"""To a command: why it cannot be carried out, empty where it was; and its data."""


class HostCuts:
    """``root``: the directory of its records; ``slicer`` is NVIDIA's tools and NVML where it is not given."""

    def __init__(self, root: Path, slicer: Slicer | None = None) -> None:
        self._slicer = slicer or local_slicer(str(root), Fleet(), cgroups.group_name(str(root)))
        self._orders: queue.SimpleQueue[tuple[int, SlicesOrder | HeldOrder, Node] | None] = (
            queue.SimpleQueue()
        )
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._awaited: set[int] = set()
        self._thread: threading.Thread | None = None

    def offered(self, node: Node) -> Node:
        """The node with the ways in which each of its devices can be cut, and why not in others. It may take a driver's time."""
        return self._slicer.offer_of(replace(node, devices=tuple(map(_with_all_modes, node.devices))))

    # -- orders ----------------------------------------------------------------------------------

    def take(self, command: int, what: str, body: dict[str, Any], node: Node) -> str:
        """Begin to carry out one of :data:`ORDERS`: :meth:`answers` has the result. Else why it is not as agreed."""
        try:
            order: SlicesOrder | HeldOrder
            if what == wire.SLICES:
                order = msgspec.convert(body, SlicesOrder)
                rundir.path_part(order.job)
            else:
                order = msgspec.convert(body, HeldOrder)
        except (msgspec.ValidationError, ValueError) as error:
            return f"the order is not as agreed: {error}"
        if command not in self._awaited:
            self._awaited.add(command)
            self._orders.put((command, order, node))
            self._start()
        return ""

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unidle-cuts", daemon=True)
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        return bool(self._awaited)

    def answers(self) -> Iterator[Answer]:
        """Commands that were carried out, each once."""
        while not self._answers.empty():
            answer = self._answers.get()
            if answer[0] in self._awaited:
                self._awaited.discard(answer[0])
                yield answer

    def lost(self) -> None:
        """The connection is over: what was asked on it is asked again on the next one, and not made twice."""
        self._awaited = set()

    def close(self) -> None:
        """Stop after the order that is being carried out. What attempts hold stays."""
        if self._thread is not None:
            self._orders.put(None)

    # -- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        self._slicer.adopt_all()
        while (one := self._orders.get()) is not None:
            command, order, node = one
            try:
                data: dict[str, Any] = {}
                if isinstance(order, SlicesOrder):
                    data = self._make(order, node)
                else:
                    self._slicer.keep(order.attempts)
                self._answers.put((command, "", data))
            except UnidleError as error:
                self._answers.put((command, error.line(), {}))
            except (OSError, LookupError, ValueError) as error:
                self._answers.put((command, f"{type(error).__name__}: {error}", {}))

    def _make(self, order: SlicesOrder, node: Node) -> dict[str, Any]:
        given = {device.id: device for device in order.devices}
        if missing := given.keys() - {device.id for device in node.devices}:
            raise LookupError(f"{node.id} has no device {min(missing)} any more")
        devices = (_as_given(device, given.get(device.id)) for device in node.devices)
        self._slicer.know(replace(node, devices=tuple(devices)))
        grants = self._slicer.grants(
            SliceWish(order.job, order.attempt, order.places, order.share, order.parts)
        )
        return {"ranks": [_told(place, grant) for place, grant in zip(order.places, grants, strict=True)]}


def _told(place: RankPlace, grant: Grant) -> dict[str, Any]:
    return {
        "rank": place.rank, "slices": list(place.slices), "env": grant.env, "cpus": grant.cpus,
        "memory_bytes": grant.memory_bytes,
    }  # fmt: skip


def _with_all_modes(device: Device) -> Device:
    return replace(
        device, sharing=Sharing(PART_MODES[device.vendor if device.kind == "gpu" else device.kind])
    )


def _as_given(device: Device, given: Device | None) -> Device:
    """This host's device, cut as the controller has it."""
    if given is None:
        return device
    return replace(device, slices_ppm=given.slices_ppm, sharing=given.sharing)


def records(state: Path) -> Path:
    """Where an agent keeps what attempts hold of its devices."""
    return state.resolve() / "slices"

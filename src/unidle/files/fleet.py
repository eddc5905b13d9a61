"""From a fleet file to a :class:`unidle.fleet.Fleet`, and back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from unidle.files.check import convert, same_fields
from unidle.files.document import Bounds, Document, Path
from unidle.files.fleet_file import (
    ID_LENGTH,
    ID_PATTERN,
    ID_SAYS,
    DevicesPart,
    FleetFile,
    HostsFleetFile,
    NodePart,
)
from unidle.files.fleet_guard import guard_of
from unidle.files.fleet_hosts import host_devices_of
from unidle.files.fleet_idle import idle_of
from unidle.files.fleet_links import check_gpu_links, gpu_links_of
from unidle.files.fleet_network import (
    check_label_keys,
    check_parents,
    label_keys,
    links,
    tiers_by_labels,
    unknown,
)
from unidle.files.fleet_notices import NoticeChannel, notices_of
from unidle.files.fleet_profile import profile_of
from unidle.files.fleet_queues import history_of, migration_of, order_of, queues_of, zone_of
from unidle.files.fleet_retention import retention_of
from unidle.files.fleet_share import check_sharing, sharing_of
from unidle.files.fleet_text import fleet_to_yaml
from unidle.files.fleet_watch import WatchPart, check_watch, watch_of
from unidle.files.load import base_dir_of, load_document
from unidle.files.values import MEMORY_LIMIT_BYTES, expand, memory_bytes
from unidle.fleet import WHOLE_PPM, Device, Fleet, GpuLinks, Node, Tier
from unidle.fleet.labels import RESERVED_KINDS
from unidle.fleet.policies import WatchSources
from unidle.words import counted

__all__ = [
    "fleet_and_notices_from_mapping",
    "fleet_from_mapping",
    "fleet_to_yaml",
    "load_fleet",
    "load_fleet_and_notices",
    "parts_without_nodes",
]

BOUNDS: Final = Bounds(size_bytes=8 << 20, values=500_000)
NODES_LIMIT: Final = 200_000
TIERS_LIMIT: Final = 100_000
DEVICES_LIMIT: Final = 1_000_000
ONLY_SITE: Final = Tier("site", "site")


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet declared in the YAML or JSON file ``path``; ``-`` is standard input.

    Errors: :class:`unidle.errors.BadInput`.
    """
    return load_fleet_and_notices(path)[0]


def load_fleet_and_notices(
    path: str | os.PathLike[str], *, hosts_join: bool = False
) -> tuple[Fleet, tuple[NoticeChannel, ...]]:
    """As :func:`load_fleet`, with the receivers of notices: they are no part of the fleet, since a log of
    it must not hold their addresses. ``hosts_join``: it may have no nodes, as hosts are to join it."""
    file = HostsFleetFile if hosts_join else FleetFile
    builder = _Builder(load_document(path, what="fleet", bounds=BOUNDS), base_dir_of(path), file)
    return builder.fleet(), builder.channels


def fleet_and_notices_from_mapping(
    data: Mapping[str, object], source: str
) -> tuple[Fleet, tuple[NoticeChannel, ...]]:
    """As :func:`load_fleet_and_notices`, for fields that are there already."""
    builder = _Builder(Document(dict(data), source), os.curdir)
    return builder.fleet(), builder.channels


def parts_without_nodes(
    document: Document, base_dir: str, others: tuple[Tier, ...]
) -> tuple[Fleet, tuple[str, ...] | None, tuple[NoticeChannel, ...]]:
    """As :func:`load_fleet_and_notices`, without nodes, with ``topology.labels``. Links may also lead to tiers of ``others``, and to their kinds."""
    builder = _Builder(document, base_dir, HostsFleetFile, others)
    fleet, file = builder.fleet(), builder.file
    return fleet if file.tiers else replace(fleet, tiers=()), file.topology.labels, builder.channels


def fleet_from_mapping(data: Mapping[str, object], source: str) -> Fleet:
    """The fleet that ``data`` (the fleet file's fields) describes; ``source`` names it in errors.

    Files that it names are looked for in the current directory.
    """
    return fleet_and_notices_from_mapping(data, source)[0]


class _Builder:
    """Expands ranges and checks what one field alone cannot tell."""

    def __init__(
        self,
        document: Document,
        base_dir: str,
        file: type[FleetFile] = FleetFile,
        others: tuple[Tier, ...] | None = None,
    ) -> None:
        self._document, self._base_dir, self._others = document, base_dir, others
        if not isinstance(document.data, Mapping):
            raise document.error(
                (),
                "a fleet file must be a mapping of fields",
                remedy="the shortest form is: nodes: [{id: n1, devices: {count: 1, kind: cpu}}]",
            )
        self.file = convert(document, file, what="fleet")
        self.channels = notices_of(document, self.file.notices, base_dir)
        self._paths: dict[str, Path] = {}  # tiers and nodes: they share one set of names
        self._device_count = 0
        self._uuids: dict[str, str] = {}
        self._index_of: list[int] = []  # of each node, its entry in the file
        self._gpu_links: dict[str, GpuLinks] = {}

    def fleet(self) -> Fleet:
        tiers, others = tuple(self._tiers()) or (ONLY_SITE,), self._others or ()
        if not self.file.tiers:
            self._paths[ONLY_SITE.id] = ()
        self._paths.update({tier.id: () for tier in others if tier.id not in self._paths})
        check_parents(self._document, tiers, self._paths)
        self._gpu_links = gpu_links_of(self._document, self.file.gpu_links, self._base_dir)
        nodes = tuple(self._nodes(tiers))
        if nodes and not self._device_count:
            raise self._document.error(
                ("nodes",), "the fleet has no device", remedy="add devices: {count: 1, kind: cpu} to a node"
            )
        if self._others is not None:
            check_label_keys(self._document, self.file)
        elif keys := label_keys(self._document, self.file, nodes):
            tiers, nodes = tiers_by_labels(self._document, nodes, self._index_of, keys, ONLY_SITE)
            self._paths.update({tier.id: () for tier in tiers})
        return Fleet(
            tiers=tiers,
            nodes=nodes,
            links=tuple(links(self._document, self.file.links, (*tiers, *others), self._paths)),
            prices_per_device_hour=dict(self.file.prices),
            peak_tflops=dict(self.file.peak_tflops),
            currency=self.file.currency,
            filler_price=self.file.filler_price,
            source="declared",
            queues=tuple(queues_of(self._document, self.file.queues)),
            zone=zone_of(self._document, self.file.timezone),
            migration=migration_of(self.file.migration),
            history=history_of(self.file.history),
            order=order_of(self._document, self.file.order),
            gpu_links=self._gpu_links,
            idle=idle_of(self._document, self.file.idle, self.file.queues),
            guard=guard_of(self._document, self.file.guard, nodes),
            profile=profile_of(self._document, self.file.profile),
            retention=retention_of(self._document, self.file.retention),
            host_devices=host_devices_of(
                self._document, self.file.hosts, isinstance(self.file, HostsFleetFile)
            ),
        )

    def _tiers(self) -> Iterator[Tier]:
        for index, part in enumerate(self.file.tiers):
            if part.kind in RESERVED_KINDS:
                raise self._document.error(
                    ("tiers", index, "kind"), "is a reserved name of the lowest tier or of the whole fleet", value=part.kind,
                    remedy="use another name, for instance leaf",
                )  # fmt: skip
            path: Path = ("tiers", index, "id")
            for name in self._expand(part.id, path, TIERS_LIMIT):
                self._claim(name, path)
                yield Tier(name, part.kind, part.parent, part.fabric)
            if len(self._paths) > TIERS_LIMIT:
                raise self._document.error(path, f"more than {TIERS_LIMIT:,} tiers", remedy="make it smaller")

    def _nodes(self, tiers: tuple[Tier, ...]) -> Iterator[Node]:
        known = {tier.id: None for tier in tiers}
        before = len(self._paths)
        for index, part in enumerate(self.file.nodes):
            path: Path = ("nodes", index)
            parent = part.parent or (tiers[0].id if len(tiers) == 1 else None)
            if parent is None:
                raise self._document.error(
                    (*path, "parent"),
                    "the field is missing",
                    remedy=f"name a tier, for instance {tiers[-1].id}",
                )
            if parent not in known:
                raise self._unknown(parent, (*path, "parent"), known)
            names = self._expand(part.id, (*path, "id"), NODES_LIMIT)
            if len(self._paths) - before + len(names) > NODES_LIMIT:
                raise self._document.error(path, f"more than {NODES_LIMIT:,} nodes", remedy="make it smaller")
            groups, devices_path = _groups(part), (*path, "devices")
            self._check_groups(groups, devices_path, len(names))
            self._check_links(part, groups, path)
            addresses = self._along(part.address, (*path, "address"), len(names), "10.0.0.[1-4]")
            spaces = self._along(part.netns or "", (*path, "netns"), len(names), "lab-n[1-4]")
            watches = self._watches(part.watch, groups, len(names), (*path, "watch"))
            equal = same_fields(Node, part) | {"parent": parent, "gpu_links": part.gpu_links or ""}
            for name, address, space, watch in zip(names, addresses, spaces, watches, strict=True):
                self._claim(name, (*path, "id"))
                own = {
                    "id": name,
                    "devices": self._devices(name, groups, devices_path),
                    "memory_bytes": self._memory(part.memory, (*path, "memory")),
                    "labels": dict(part.labels),
                    "address": address,
                    "netns": space,
                    "watch": watch,
                }
                yield Node(**equal | own)
                self._index_of.append(index)

    def _check_links(self, part: NodePart, groups: tuple[DevicesPart, ...], path: Path) -> None:
        if part.gpu_links is not None:
            gpus = [
                k
                for group, first, _ in _numbered(groups)
                if group.kind == "gpu"
                for k in range(first, first + group.count)
            ]
            check_gpu_links(self._document, (*path, "gpu_links"), part.gpu_links, self._gpu_links, gpus)

    def _watches(
        self, part: WatchPart | None, groups: tuple[DevicesPart, ...], count: int, path: Path
    ) -> list[WatchSources | None]:
        if part is None:
            return [None] * count
        check_watch(self._document, part, path, sum(group.count for group in groups))
        logs = self._along(part.kernel_log or "", (*path, "kernel_log"), count, "n[1-4].log")
        overlays = self._along(part.nvml or "", (*path, "nvml"), count, "n[1-4].json")
        return [watch_of(part, *own, self._base_dir) for own in zip(logs, overlays, strict=True)]

    def _check_groups(self, groups: tuple[DevicesPart, ...], path: Path, nodes: int) -> None:
        self._device_count += nodes * sum(group.count for group in groups)
        if self._device_count > DEVICES_LIMIT:
            raise self._document.error(path, f"more than {DEVICES_LIMIT:,} devices", remedy="make it smaller")
        for k, group in enumerate(groups):
            total = sum(group.slices_ppm)
            if total != WHOLE_PPM:
                raise self._document.error(
                    self._in_group(path, k, "slices_ppm"),
                    f"the shares sum to {total:,}, not to {WHOLE_PPM:,}",
                    value=list(group.slices_ppm),
                    remedy="a share is in millionths of the device",
                )
            memory = self._memory(group.memory, self._in_group(path, k, "memory"))
            if group.share is not None:
                where = self._in_group(path, k, "share")
                check_sharing(
                    self._document, group.share, group.kind, group.vendor, group.slices_ppm, where,
                    model=group.model or "",
                    memory_bytes=memory,
                )  # fmt: skip
            if group.uuid and group.count * nodes > 1:
                raise self._document.error(
                    self._in_group(path, k, "uuid"),
                    "one identity for several devices",
                    value=group.uuid,
                    remedy="give each device an entry of its own with count 1",
                )

    def _devices(self, node: str, groups: tuple[DevicesPart, ...], path: Path) -> tuple[Device, ...]:
        devices: list[Device] = []
        taken: set[int] = set()
        for k, (group, first, number) in enumerate(_numbered(groups)):
            memory = memory_bytes(group.memory)
            sharing = sharing_of(group.share, group.kind, group.vendor) if group.share is not None else None
            model = group.model if group.model is not None else {"cpu": "cpu", "gpu": ""}[group.kind]
            for index in range(first, first + group.count):
                if index in taken:
                    raise self._duplicate("device", f"{node}/{index}", self._in_group(path, k, "index"))
                taken.add(index)
                devices.append(
                    Device(
                        id=f"{node}/{index}",
                        node=node,
                        index=index,
                        kind=group.kind,
                        model=model,
                        uuid=group.uuid,
                        memory_bytes=memory,
                        slices_ppm=group.slices_ppm,
                        vendor=group.vendor,
                        sharing=sharing,
                        number=None if number == first else number + index - first,
                    )
                )
            if group.uuid:
                if group.uuid in self._uuids:
                    raise self._duplicate("uuid", group.uuid, self._in_group(path, k, "uuid"))
                self._uuids[group.uuid] = devices[-1].id
        return tuple(devices)

    def _expand(self, text: str, path: Path, limit: int) -> list[str]:
        try:
            names = expand(text, limit)
        except ValueError as error:
            raise self._document.error(path, str(error), value=text, remedy="for instance n[1-4]") from None
        for name in names:
            if len(name) > ID_LENGTH or not re.search(ID_PATTERN, name):
                raise self._document.error(
                    path, f"must be {ID_SAYS}", value=name, remedy="for instance n[1-4]"
                )
        return names

    def _along(self, text: str, path: Path, count: int, example: str) -> list[str]:
        """The members of a range that runs along with the nodes' ids; one that is none is all of theirs."""
        if not text:
            return [""] * count
        try:
            members = expand(text, NODES_LIMIT)
        except ValueError as error:
            raise self._document.error(
                path, str(error), value=text, remedy=f"for instance {example}"
            ) from None
        if len(members) == 1:
            return members * count
        if len(members) != count:
            raise self._document.error(
                path, f"{counted(len(members), 'member')} for {counted(count, 'node')}", value=text,
                remedy="give the range as many members as the one in id",
            )  # fmt: skip
        return members

    def _memory(self, amount: int | str, path: Path) -> int:
        size = memory_bytes(amount)
        if size > MEMORY_LIMIT_BYTES:
            raise self._document.error(
                path, "must be at most 1 PiB", value=amount, remedy="for instance 80GiB"
            )
        return size

    def _in_group(self, path: Path, group: int, field: str) -> Path:
        """The path of a device group's field: ``devices`` is one mapping or a list of them."""
        return (
            (*path, field)
            if isinstance(self.file.nodes[int(path[1])].devices, DevicesPart)
            else (*path, group, field)
        )

    def _claim(self, name: str, path: Path) -> None:
        if name in self._paths:
            raise self._duplicate("name", name, path)
        self._paths[name] = path

    def _duplicate(self, what: str, name: str, path: Path) -> Exception:
        first = self._document.mark(self._paths.get(name, ()))
        where = f", first on line {first.line}" if first else ""
        return self._document.error(
            path, f"the {what} is used twice{where}", value=name, remedy="each needs its own"
        )

    def _unknown(self, name: str, path: Path, known: Iterable[str]) -> Exception:
        return unknown(self._document, name, path, known, "tier")


def _groups(part: NodePart) -> tuple[DevicesPart, ...]:
    return (part.devices,) if isinstance(part.devices, DevicesPart) else part.devices


def _numbered(groups: Iterable[DevicesPart]) -> Iterator[tuple[DevicesPart, int, int]]:
    """Groups with the index of their first device, and what its vendor's tools count it as."""
    following, count = 0, dict[str, int]()
    for group in groups:
        first = following if group.index is None else group.index
        following = first + group.count
        number = group.number
        if number is None:  # one vendor alone counts as the node does
            others = group.kind == "gpu" and bool(count.keys() - {group.vendor})
            number = count.get(group.vendor, 0) if others else first
        if group.kind == "gpu":
            count[group.vendor] = number + group.count
        yield group, first, number

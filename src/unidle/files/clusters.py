"""The file that lists several clusters, and the summaries that clusters write of themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from unidle.files.check import convert
from unidle.files.document import BadFile, Bounds
from unidle.files.load import base_dir_of, load_document, read_text, source_name
from unidle.files.values import NAME_LENGTH, NAME_PATTERN, NAME_SAYS
from unidle.fleet.summary import CapacitySummary

FORMAT: Final = "unidle-summary"
VERSION: Final = 2
OLDEST: Final = 1  # knows nothing of devices that are cut on demand
_LARGEST: Final = 64 << 20


class ClusterPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One cluster: its store, or a summary if jobs cannot be sent to it from this machine."""

    name: Annotated[
        str,
        Meta(
            pattern=NAME_PATTERN, min_length=1, max_length=NAME_LENGTH, description="Name of the cluster.", examples=["east"],
            extra={"says": NAME_SAYS},
        ),
    ]  # fmt: skip
    store: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="Store of the cluster: the path of a file, or a URL postgresql://...",
            examples=["postgresql://db.east/unidle"],
        ),
    ] = None
    summary: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="File with the output of `unidle fleet summary` for the cluster.",
            examples=["west.json"],
        ),
    ] = None


class ClustersFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Clusters that jobs can be sent to. Among equal clusters, the first one is used."""

    clusters: Annotated[
        tuple[ClusterPart, ...],
        Meta(
            min_length=1,
            max_length=1000,
            description="Clusters. Among equal clusters, the first one is used.",
        ),
    ]
    prefer: Annotated[
        Literal["start", "cost"],
        Meta(description="start: the earliest start takes precedence. cost: the lowest price does."),
    ] = "start"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is found: one of both is None."""

    name: str
    store: str | None
    summary: str | None


@dataclass(frozen=True, slots=True)
class Clusters:
    """A clusters file."""

    clusters: tuple[ClusterAddress, ...]
    prefer: Literal["start", "cost"]


def load_clusters(path: str | os.PathLike[str]) -> Clusters:
    """The clusters in the YAML or JSON file ``path``; paths in it start from its directory.

    Errors: :class:`unidle.errors.BadInput`, with the line.
    """
    document = load_document(path, what="clusters", bounds=Bounds())
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a clusters file must be a mapping of fields",
            remedy="the shortest form is: clusters: [{name: east, store: east.db}]",
        )  # fmt: skip
    file = convert(document, ClustersFile, what="clusters")
    base, names = base_dir_of(path), set[str]()
    found = []
    for k, part in enumerate(file.clusters):
        if part.name in names:
            raise document.error(
                ("clusters", k, "name"),
                "two clusters have this name",
                value=part.name,
                remedy="each needs its own",
            )
        names.add(part.name)
        if (part.store is None) == (part.summary is None):
            raise document.error(
                ("clusters", k), "needs a store or a summary, and not both", value=part.name,
                remedy="use store: PATH_OR_URL if jobs can be sent to the cluster",
            )  # fmt: skip
        found.append(ClusterAddress(part.name, _from(base, part.store), _from(base, part.summary)))
    return Clusters(tuple(found), file.prefer)


def _from(base: str, place: str | None) -> str | None:
    return place if place is None or "://" in place else os.path.join(base, place)  # noqa: PTH118


class _Head(Struct, frozen=True):
    format: str
    version: int


class _Written(Struct, frozen=True):
    format: str
    version: int
    summary: CapacitySummary


def summary_as_json(summary: CapacitySummary) -> bytes:
    """What :func:`load_summary` reads."""
    return msgspec.json.encode(_Written(FORMAT, VERSION, summary))


def load_summary(path: str | os.PathLike[str]) -> CapacitySummary:
    """Read a summary. :class:`BadInput` names the file, the field and the remedy."""
    text, source = read_text(path, what="summary", limit_bytes=_LARGEST), source_name(path)
    again = "write it again with `unidle fleet summary > FILE`"
    try:
        head = msgspec.json.decode(text, type=_Head)
        if head.format != FORMAT:
            raise BadFile(
                source, "is not a capacity summary", field="format", value=head.format, remedy=again
            )
        if not OLDEST <= head.version <= VERSION:
            remedy = f"this unidle reads versions {OLDEST} to {VERSION}: upgrade it, or {again}"
            raise BadFile(
                source, "a summary of another version", field="version", value=head.version, remedy=remedy
            )
        summary = msgspec.json.decode(text, type=_Written).summary
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        problem, _, at = str(error).partition(" - at `")
        raise BadFile(
            source,
            f"the summary cannot be read: {problem}",
            field=at.rstrip("`").lstrip("$.") or None,
            remedy=again,
        ) from None
    _check(summary, source, again)
    return summary


def _check(summary: CapacitySummary, source: str, again: str) -> None:
    if not summary.tiers:
        raise BadFile(source, "has no tier, not even the whole fleet", field="summary.tiers", remedy=again)
    for tier in summary.tiers:
        for stock in (stock for domain in tier.domains for stock in domain.stock):
            if not 0 <= stock.of < len(summary.classes):
                raise BadFile(source, "names a class that does not exist", field=f"summary.tiers.{tier.kind}", value=stock.of, remedy=again)  # fmt: skip
            if not 0 <= stock.free <= stock.slices or stock.nodes < 0:
                raise BadFile(source, "has more free than it has in all", field=f"summary.tiers.{tier.kind}", value=stock.free, remedy=again)  # fmt: skip

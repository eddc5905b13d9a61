"""From a span file to a :class:`Setting`: whatever does not fit together is one error with its line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from unidle.files.check import convert
from unidle.files.document import Bounds, Document, Path
from unidle.files.load import load_document
from unidle.files.span_file import ModelPart, PlanFile, SpanFile, StagePart
from unidle.files.values import memory_bytes
from unidle.span.cost import Shape
from unidle.span.link import Link
from unidle.span.offer import stage_of
from unidle.span.routes import parts
from unidle.span.setting import Setting, Site, Stage
from unidle.words import counted

OPERATIONS_MOST: Final = 10_000_000  # beyond it a simulation would not fit into a small machine's memory


def load_span(path: str | os.PathLike[str]) -> Setting:
    """The setting in the YAML or JSON file ``path``; ``-`` is standard input.

    Errors: :class:`unidle.errors.BadInput`, with the line.
    """
    return setting_of(load_document(path, what="span", bounds=Bounds()))


def span_from_mapping(data: Mapping[str, Any], source: str = "span") -> Setting:
    """The same from plain data."""
    return setting_of(Document(data, source))


def setting_of(document: Document) -> Setting:
    """The setting of a document that was read."""
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a span file must be a mapping of fields",
            remedy="the least is: stages: 4, microbatches: 8, stage_ns: {forward: 200, backward: 200, weight: 200}",
        )  # fmt: skip
    file = convert(document, SpanFile, what="span")
    sites, links = _sites(document, file), links_of(document, file)
    shape = None
    if file.model is not None:
        model = file.model
        shape = Shape(model.hidden, model.sequence, model.microbatch, model.bytes_per_value)
    _sizes(document, file)
    caps = [file.memory_cap_bytes, *(site.memory_cap_bytes for site in file.sites if site.stages)]
    cap = min((memory_bytes(given) for given in caps if given is not None), default=None)
    static = memory_bytes(file.static_bytes)
    if shape and file.activation_bytes is not None:
        raise document.error(
            ("activation_bytes",),
            "follows from the model",
            value=file.activation_bytes,
            remedy="leave it out",
        )
    sized = shape.activation_bytes if shape else memory_bytes(file.activation_bytes or 0)
    setting = Setting(
        _stages(document, file, shape), file.microbatches, sites, links, file.pipelines, file.cell, sized, static, cap,
        file.local_gbps, file.baseline_flows == 1, file.chunks,
    )  # fmt: skip
    _holds_one(document, setting)
    return setting


def _sizes(document: Document, file: SpanFile) -> None:
    if file.pipelines % file.cell:
        raise document.error(
            ("cell",), f"does not divide {counted(file.pipelines, 'pipeline')}", value=file.cell,
            remedy="every pipeline is in a cell of the same size",
        )  # fmt: skip
    size = file.stages * file.microbatches * max(file.cell, file.chunks)
    if size > OPERATIONS_MOST:
        raise document.error(
            ("microbatches",),
            f"stages x microbatches x the larger of cell and chunks are {size:,}, and at most {OPERATIONS_MOST:,} are"
            " simulated",
            value=file.microbatches,
            remedy="simulate fewer microbatches",
        )


def _holds_one(document: Document, setting: Setting) -> None:
    """One microbatch is the least that any schedule holds."""
    cap = setting.memory_cap_bytes
    if cap is None:
        return
    stage = max(range(len(setting.stages)), key=lambda s: setting.stages[s].kept_bytes)
    least = setting.static_bytes + setting.input_bytes + setting.stages[stage].kept_bytes
    if least > cap:
        site = setting.sites[setting.site_of[stage]].name
        raise document.error(
            ("memory_cap_bytes",),
            f"stage {stage} (site {site}) needs {least:,} bytes for one microbatch, {least - cap:,} more than a device"
            " may hold",
            value=cap, remedy="use more stages, a smaller microbatch, or a larger cap",
        )  # fmt: skip


def _sites(document: Document, file: SpanFile) -> tuple[Site, ...]:
    if not file.sites:
        if file.links:
            raise document.error(
                ("sites",), "the field is missing", remedy="name the sites that the links join"
            )
        return (Site("here", file.stages),)
    seen: set[str] = set()
    for k, site in enumerate(file.sites):
        if site.name in seen:
            raise document.error(
                ("sites", k, "name"), "is there twice", value=site.name, remedy="give each its own"
            )
        seen.add(site.name)
        needed = site.stages * file.pipelines
        if site.gpus is not None and site.gpus < needed:
            raise document.error(
                ("sites", k, "gpus"), f"{counted(needed, 'device')} are needed: {counted(site.stages, 'stage')} of "
                f"{counted(file.pipelines, 'pipeline')}", value=site.gpus, remedy="move stages, or use fewer pipelines",
            )  # fmt: skip
    total = sum(site.stages for site in file.sites)
    if total != file.stages:
        raise document.error(
            ("stages",), f"the sites have {total} together", value=file.stages,
            remedy="let the stages of the sites sum to it",
        )  # fmt: skip
    return tuple(
        Site(site.name, site.stages, site.gpus, site.price_per_gpu_hour) for site in file.sites if site.stages
    )


def links_of(document: Document, file: PlanFile, *, chain: bool = True) -> tuple[Link, ...]:
    """The links; ``chain``: neighbours in the list of sites must have one."""
    names, found = [site.name for site in file.sites], dict[frozenset[str], Link]()
    for k, part in enumerate(file.links):
        for field, name in (("from", part.from_), ("to", part.to)):
            if name not in names:
                raise document.error(
                    ("links", k, field),
                    "there is no such site",
                    value=name,
                    remedy=f"the sites are {', '.join(names)}",
                )
        pair = frozenset((part.from_, part.to))
        if len(pair) == 1:
            raise document.error(
                ("links", k, "to"), "is the site it begins at", value=part.to, remedy="name another"
            )
        if pair in found:
            raise document.error(
                ("links", k),
                f"{part.from_} and {part.to} are linked already",
                remedy="links go both ways: leave one out",
            )
        flow = None if part.flow_mbps is None else part.flow_mbps / 1000
        found[pair] = Link(
            part.from_, part.to, round(part.latency_ms * 1e6), part.capacity_gbps, flow, part.egress_per_gb
        )
    for a, b in pairwise(site.name for site in file.sites if site.stages):
        if chain and found and frozenset((a, b)) not in found:
            raise document.error(
                ("links",), f"there is none between {a} and {b}, which have neighbouring stages",
                remedy=f"add {{from: {a}, to: {b}, latency_ms: ..., capacity_gbps: ...}}",
            )  # fmt: skip
    return tuple(found.values())


def _stages(document: Document, file: SpanFile, shape: Shape | None) -> tuple[Stage, ...]:
    layers = _layers(document, file.model, file.stages) if file.model else (0,) * file.stages
    kept = [shape.kept_bytes * n if shape else 0 for n in layers]
    gradient = [shape.parameter_bytes * n if shape else 0 for n in layers]
    if file.stage_ns is not None:
        forwards, backwards, weights, agains = (
            _times(document, file.stage_ns, name, file.stages)
            for name in ("forward", "backward", "weight", "recompute")
        )
        columns = zip(forwards, backwards, weights, agains, kept, gradient, strict=True)
        return tuple(Stage(*column) for column in columns)
    if shape is None:
        raise document.error(
            (), "has neither a model nor stage_ns",
            remedy="add model: {layers, hidden, sequence}, or stage_ns: {forward, backward, weight}",
        )  # fmt: skip
    speeds = [site.device_tflops or file.device_tflops for site in file.sites for _ in range(site.stages)]
    return tuple(
        _computed(document, shape, n, speed)
        for n, speed in zip(layers, speeds or [file.device_tflops] * file.stages, strict=True)
    )


def _computed(document: Document, shape: Shape, layers: int, tflops: float | None) -> Stage:
    if tflops is None:
        raise document.error(
            ("device_tflops",), "the field is missing", remedy="a model needs it, for instance 156"
        )
    return stage_of(shape, layers, tflops)


def _layers(document: Document, model: ModelPart, stages: int) -> tuple[int, ...]:
    path: Path = ("model", "layers")
    if not isinstance(model.layers, int):
        if len(model.layers) != stages:
            raise document.error(
                path,
                f"gives {len(model.layers)} of {counted(stages, 'stage')}",
                remedy="one number for each stage",
            )
        return model.layers
    if model.layers < stages:
        raise document.error(
            path,
            f"are fewer than {counted(stages, 'stage')}",
            value=model.layers,
            remedy="each stage has at least one",
        )
    return tuple(sorted(parts(model.layers, stages), reverse=True))


def _times(document: Document, given: StagePart, name: str, stages: int) -> tuple[int, ...]:
    value: int | tuple[int, ...] = getattr(given, name)
    if isinstance(value, int):
        return (value,) * stages
    if len(value) != stages:
        raise document.error(
            ("stage_ns", name),
            f"gives {len(value)} of {counted(stages, 'stage')}",
            remedy="one number for each stage",
        )
    return value

"""From a span file to a :class:`Setting`: inconsistent fields are one error with its line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final, cast

from unidle.files.check import convert
from unidle.files.document import Bounds, Document, Path
from unidle.files.load import load_document
from unidle.files.values import memory_bytes
from unidle.span.files.file import Bytes, ModelPart, PlanFile, SpanFile, StagePart
from unidle.span.files.layers import cut_of, measured_of, speed_of
from unidle.span.model.cost import ModelShape, SaveTimes
from unidle.span.model.layers import ModelCosts
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.plan.offer import stage_of
from unidle.span.simulate.routes import parts
from unidle.span.simulate.uneven import PipelineGroup, PipelineShares, grouped, shares_by_cell
from unidle.words import counted

OPERATIONS_MOST: Final = 10_000_000  # beyond it a simulation would not fit into a small machine's memory


def load_pipelines(path: str | os.PathLike[str]) -> tuple[Setting, tuple[PipelineGroup, ...]]:
    """The setting in the YAML or JSON file ``path``, and the groups of pipelines if they differ, else none.

    ``-`` is standard input. The setting has the microbatches of the pipeline with most, and the file's own speed.
    Errors: :class:`unidle.errors.BadInput`, with the line.
    """
    return pipelines_of(load_document(path, what="span", bounds=Bounds()))


def pipelines_of(document: Document) -> tuple[Setting, tuple[PipelineGroup, ...]]:
    """The same of a document that was read."""
    setting = setting_of(document, unequal=True)
    found = shares_of(document, setting)
    return setting, () if found is None else grouped(setting, found.microbatches, found.speeds)


def shares_of(document: Document, setting: Setting) -> PipelineShares | None:
    """What each pipeline does; None if they are equal. Pipelines of a cell are equal. Errors:
    :class:`unidle.errors.BadInput`.
    """
    file = convert(document, SpanFile, what="span")
    counts, speeds = file.microbatches, file.pipeline_speeds
    if isinstance(counts, int) and speeds is None:
        return None
    for field, given in (("microbatches", counts), ("pipeline_speeds", speeds)):
        if isinstance(given, tuple) and len(given) != file.pipelines:
            raise document.error(
                (field,),
                f"gives {len(given)} of {counted(file.pipelines, 'pipeline')}",
                remedy="one number for each pipeline",
            )
    speeds = speeds or (1.0,) * file.pipelines
    if isinstance(counts, int):
        counts = shares_by_cell(speeds, counts * file.pipelines, file.cell)
    for group in grouped(setting, counts, speeds):
        if group.setting.cell != file.cell:
            raise document.error(
                ("cell",), f"does not divide the {counted(len(group.pipelines), 'pipeline')} with {group.setting.microbatches}"
                " microbatches", value=file.cell, remedy="pipelines of a cell are equal",
            )  # fmt: skip
    return PipelineShares(counts, speeds)


def setting_of(document: Document, *, unequal: bool = False) -> Setting:
    """The setting of a document that was read; ``unequal``: pipelines may differ."""
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a span file must be a mapping of fields",
            remedy="the shortest form is: stages: 4, microbatches: 8, stage_ns: {forward: 200, backward: 200, weight: 200}",
        )  # fmt: skip
    file = convert(document, SpanFile, what="span")
    if not unequal and (file.pipeline_speeds or not isinstance(file.microbatches, int)):
        raise document.error(
            ("microbatches",), "unequal pipelines can only be simulated and run",
            remedy="give one number of microbatches and no pipeline_speeds",
        )  # fmt: skip
    sites, links = _sites(document, file), links_of(document, file)
    shape, measured = None, measured_of(document, file)
    if file.model is not None and measured is None:
        model = file.model
        shape = ModelShape(model.hidden, model.sequence, model.microbatch, model.bytes_per_value)
    _sizes(document, file)
    caps = [file.memory_cap_bytes, *(site.memory_cap_bytes for site in file.sites if site.stages)]
    cap = min((memory_bytes(given) for given in caps if given is not None), default=None)
    static = memory_bytes(file.static_bytes)
    for name in ("activation_bytes", "input_bytes"):
        if shape and (given := getattr(file, name)) is not None:
            raise document.error((name,), "follows from the model", value=given, remedy="leave it out")
    sized = shape.activation_bytes if shape else memory_bytes(file.activation_bytes or 0)
    stages = _cut(document, file, measured) if measured else _stages(document, file, shape)
    if file.input_bytes is not None:
        entering = _entering(document, file.input_bytes, file.stages)
        stages = tuple(replace(stage, input_bytes=size) for stage, size in zip(stages, entering, strict=True))
    setting = Setting(
        stages, most_microbatches(file), sites, links, file.pipelines, file.cell, sized, static, cap,
        file.local_gbps, file.baseline_flows == 1, file.chunks,
    )  # fmt: skip
    setting = replace(setting, saving=saving_of(document, file))
    _holds_one(document, setting)
    return setting


def saving_of(document: Document, file: PlanFile) -> SaveTimes | None:
    """How work is saved, if it is given; required if devices are revoked."""
    if file.checkpoint_every_s is not None:
        return SaveTimes(file.checkpoint_every_s, file.checkpoint_s, file.restart_s)
    revoked = next((k for k, site in enumerate(file.sites) if site.revocations_per_hour), None)
    for field, given in (
        (("sites", revoked, "revocations_per_hour"), revoked is not None),
        (("checkpoint_s",), file.checkpoint_s), (("restart_s",), file.restart_s),
    ):  # fmt: skip
        if given:
            raise document.error(
                cast("Path", field),
                "needs the interval between checkpoints",
                remedy="add checkpoint_every_s, for instance 600",
            )
    return None


def most_microbatches(file: SpanFile) -> int:
    """Of the pipeline that has most."""
    return file.microbatches if isinstance(file.microbatches, int) else max(file.microbatches)


def _sizes(document: Document, file: SpanFile) -> None:
    if file.pipelines % file.cell:
        raise document.error(
            ("cell",), f"does not divide {counted(file.pipelines, 'pipeline')}", value=file.cell,
            remedy="every pipeline is in a cell of the same size",
        )  # fmt: skip
    size = file.stages * most_microbatches(file) * max(file.cell, file.chunks)
    if size > OPERATIONS_MOST:
        raise document.error(
            ("microbatches",),
            f"stages x microbatches x the larger of cell and chunks are {size:,}, and at most {OPERATIONS_MOST:,} are"
            " simulated",
            value=most_microbatches(file),
            remedy="simulate fewer microbatches",
        )


def _holds_one(document: Document, setting: Setting) -> None:
    """One microbatch is the least that any schedule holds."""
    cap = setting.memory_cap_bytes
    if cap is None:
        return
    needed = [
        setting.held_bytes(s) + setting.entering_bytes(s) + stage.kept_bytes
        for s, stage in enumerate(setting.stages)
    ]
    least = max(needed)
    stage = needed.index(least)
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
            ("stages",), f"the sites have {total} in all", value=file.stages,
            remedy="let the stages of the sites sum to it",
        )  # fmt: skip
    return tuple(
        Site(site.name, site.stages, site.gpus, site.price_per_gpu_hour, site.revocations_per_hour)
        for site in file.sites
        if site.stages
    )


def links_of(document: Document, file: PlanFile, *, chain: bool = True) -> tuple[WanLink, ...]:
    """The links; ``chain``: neighbours in the list of sites must have one."""
    names, found = [site.name for site in file.sites], dict[frozenset[str], WanLink]()
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
        found[pair] = WanLink(
            part.from_, part.to, round(part.latency_ms * 1e6), part.capacity_gbps, flow, part.egress_per_gb
        )
    for a, b in pairwise(site.name for site in file.sites if site.stages):
        if chain and found and frozenset((a, b)) not in found:
            raise document.error(
                ("links",), f"there is no link between {a} and {b}, which have neighbouring stages",
                remedy=f"add {{from: {a}, to: {b}, latency_ms: ..., capacity_gbps: ...}}",
            )  # fmt: skip
    return tuple(found.values())


def _cut(document: Document, file: SpanFile, measured: ModelCosts) -> tuple[Stage, ...]:
    """Stages of measured layers."""
    counts = cut_of(document, file, measured)
    sites = [k for k, site in enumerate(file.sites) for _ in range(site.stages)] or [0] * file.stages
    begins = accumulate((0, *counts[:-1]))
    return tuple(
        measured.stage(first, n, speed_of(document, file, site, measured))
        for first, n, site in zip(begins, counts, sites, strict=True)
    )


def _entering(document: Document, given: tuple[Bytes, ...], stages: int) -> tuple[int, ...]:
    if len(given) != stages:
        raise document.error(
            ("input_bytes",), f"gives {len(given)} of {counted(stages, 'stage')}",
            remedy="one amount for each stage: what enters it",
        )  # fmt: skip
    return tuple(memory_bytes(size) for size in given)


def _stages(document: Document, file: SpanFile, shape: ModelShape | None) -> tuple[Stage, ...]:
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
            (), "has neither a model nor stage_ns nor layers",
            remedy="add model: {layers, hidden, sequence}, or stage_ns: {forward, backward, weight}, or measured layers",
        )  # fmt: skip
    speeds = [site.device_tflops or file.device_tflops for site in file.sites for _ in range(site.stages)]
    return tuple(
        _computed(document, shape, n, speed)
        for n, speed in zip(layers, speeds or [file.device_tflops] * file.stages, strict=True)
    )


def _computed(document: Document, shape: ModelShape, layers: int, tflops: float | None) -> Stage:
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

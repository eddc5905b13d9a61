"""A span file without a layout, for a plan; and a plan as a span file that can be simulated."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from unidle.errors import BadInput
from unidle.files.check import convert
from unidle.files.document import Bounds, Document
from unidle.files.load import base_dir_of, load_document
from unidle.files.values import memory_bytes
from unidle.span.files.file import ModelPart, OfferPart, PlanFile
from unidle.span.files.layers import measured_of, speed_of
from unidle.span.files.setting import links_of, saving_of
from unidle.span.model.cost import PARAMETERS
from unidle.span.model.layers import ModelCosts
from unidle.span.plan.offer import PlanRequest, SiteLayout, SiteOffer, static_of

_PATHS: Final = ("directory", "certificate", "key", "authority")
STATE_BYTES: Final = 16  # per parameter: mixed-precision Adam, "ZeRO" (arXiv 1910.02054), section 3.1


def load_plan(path: str | os.PathLike[str]) -> tuple[PlanRequest, Mapping[str, Any]]:
    """What to plan for, from the YAML or JSON file ``path`` (``-`` is standard input), and the file's ``train`` section with whole paths and its sites' ``hosts``, for :func:`as_file`."""
    document = load_document(path, what="span", bounds=Bounds())
    wanted, data = wanted_of(document), document.data
    assert isinstance(data, Mapping)
    return wanted, carried(data, base_dir_of(path))


def carried(data: Mapping[str, Any], base: str) -> dict[str, Any]:
    """Fields of a span file that a plan passes on; paths in them started from ``base``."""
    found = {}
    if isinstance(train := data.get("train"), Mapping):
        found["train"] = {name: _whole(name, value, base) for name, value in train.items()}
    hosts = {site["name"]: site["hosts"] for site in data.get("sites", ()) if site.get("hosts")}
    return found | ({"hosts": hosts} if hosts else {})


def _whole(name: str, value: Any, base: str) -> Any:
    """A field of ``train`` with whole paths."""
    if isinstance(value, Mapping) and name in ("model", "optimizer", "checkpoint", "tls"):
        return {inner: _whole(inner, each, base) for inner, each in value.items()}
    if not isinstance(value, str) or not (name in _PATHS or ".py:" in value):
        return value
    return os.path.abspath(os.path.join(base, value))  # noqa: PTH100, PTH118


def wanted_of(document: Document) -> PlanRequest:
    """What to plan for, from a document that was read. Errors: :class:`unidle.errors.BadInput`, with the line."""
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a span file must be a mapping of fields", remedy="a plan needs model, batch, sites and links"
        )
    file = convert(document, PlanFile, what="span")
    measured = measured_of(document, file)
    if measured is not None:
        return PlanRequest(
            len(measured.layers), 0, 0, 0, _batch(document, file, measured.microbatch), _offers(document, file, measured),
            links_of(document, file, chain=False), file.local_gbps, memory_bytes(file.static_bytes), 0,
            file.baseline_flows == 1, file.chunks, saving_of(document, file), measured,
        )  # fmt: skip
    model = _model(document, file)
    layers = model.layers if isinstance(model.layers, int) else sum(model.layers)
    return PlanRequest(
        layers, model.hidden, model.sequence, model.bytes_per_value, _batch(document, file, model.microbatch),
        _offers(document, file, None), links_of(document, file, chain=False), file.local_gbps,
        memory_bytes(file.static_bytes), _state_bytes(file, model), file.baseline_flows == 1, file.chunks,
        saving_of(document, file),
    )  # fmt: skip


def _batch(document: Document, file: PlanFile, microbatch: int) -> int:
    """Sequences of an iteration; of a file with a layout those that it has."""
    if file.batch is not None:
        return file.batch
    if file.microbatches is None:
        raise document.error(
            ("batch",), "the field is missing",
            remedy="say how many sequences an iteration has over all pipelines, for instance 64",
        )  # fmt: skip
    counts = file.microbatches
    each = counts * file.pipelines if isinstance(counts, int) else sum(counts)
    return each * microbatch


def _state_bytes(file: PlanFile, model: ModelPart) -> int:
    """Weights and optimizer state of a layer; none if ``static_bytes`` includes them."""
    if file.state_bytes_per_layer is not None:
        return memory_bytes(file.state_bytes_per_layer)
    return 0 if file.static_bytes else STATE_BYTES * PARAMETERS * model.hidden**2


def _model(document: Document, file: PlanFile) -> ModelPart:
    if file.stage_ns is not None:
        raise document.error(
            ("stage_ns",), "belongs to given stages, and a plan chooses them",
            remedy="give model and device_tflops instead",
        )  # fmt: skip
    if file.model is None:
        raise document.error(
            ("model",),
            "the field is missing",
            remedy="a plan needs {layers, hidden, sequence}, or measured layers",
        )
    return file.model


def _offers(document: Document, file: PlanFile, measured: ModelCosts | None) -> tuple[SiteOffer, ...]:
    if not file.sites:
        raise document.error(("sites",), "the field is missing", remedy="name the sites that may be used")
    seen = set[str]()
    found = list[SiteOffer]()
    for k, site in enumerate(file.sites):
        if site.name in seen:
            raise document.error(
                ("sites", k, "name"), "is there twice", value=site.name, remedy="give each its own"
            )
        seen.add(site.name)
        found.append(_offer(document, file, k, site, measured))
    return tuple(found)


def _offer(
    document: Document, file: PlanFile, k: int, site: OfferPart, measured: ModelCosts | None
) -> SiteOffer:
    tflops = speed_of(document, file, k, measured) if measured else site.device_tflops or file.device_tflops
    if tflops is None:
        raise document.error(
            ("device_tflops",),
            "the field is missing",
            remedy="give it for all, or for each site, for instance 156",
        )
    gpus = site.gpus or (site.stages or 0) * file.pipelines
    if not gpus:
        raise document.error(("sites", k, "gpus"), "the field is missing", remedy="say how many it has")
    caps = [memory_bytes(cap) for cap in (file.memory_cap_bytes, site.memory_cap_bytes) if cap is not None]
    return SiteOffer(
        site.name, gpus, site.price_per_gpu_hour, tflops, min(caps, default=None), site.revocations_per_hour
    )


def rented(wanted: PlanRequest, text: str) -> PlanRequest:
    """The same with ``SITE:GPUS:PRICE`` instead of what the site has; a new one is like the first, and joined to none."""
    name, _, rest = text.partition(":")
    gpus, _, price = rest.partition(":")
    try:
        count, money = int(gpus), float(price)
    except ValueError:
        count, money = 0, -1.0
    if not name or count < 1 or not 0 <= money < float("inf"):
        raise BadInput(
            "is not SITE:GPUS:PRICE", field="--rent", value=text, remedy="for instance ohio:64:2.20"
        )
    offers = list(wanted.offers)
    for k, offer in enumerate(offers):
        if offer.name == name:
            offers[k] = replace(offer, gpus=count, price_per_gpu_hour=money)
            return replace(wanted, offers=tuple(offers))
    if wanted.links:
        raise BadInput(
            "is not in the file, so that its links are unknown", field="--rent", value=name,
            remedy="add it there with its links and gpus: 1, then rent more",
        )  # fmt: skip
    return replace(
        wanted, offers=(*offers, replace(offers[0], name=name, gpus=count, price_per_gpu_hour=money))
    )


def as_file(wanted: PlanRequest, layout: SiteLayout, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A whole span file, which ``unidle span simulate`` reads; sites that are left out have no stages.

    ``more``: what :func:`load_plan` passes on, for ``unidle span run``.
    """
    hosts = (more or {}).get("hosts", {})
    used = [*zip(layout.order, layout.stages, strict=True)]
    used += [(k, 0) for k in range(len(wanted.offers)) if k not in layout.order]
    links = [
        {
            "from": link.a, "to": link.b, "latency_ms": link.latency_ns / 1e6, "capacity_gbps": link.capacity_gbps,
            "egress_per_gb": link.egress_per_gb,
        } | ({} if link.flow_gbps is None else {"flow_mbps": link.flow_gbps * 1000})
        for link in wanted.links
    ]  # fmt: skip
    sites = [
        {
            "name": offer.name, "stages": count, "gpus": offer.gpus, "price_per_gpu_hour": offer.price_per_gpu_hour,
            "device_tflops": offer.tflops, "revocations_per_hour": offer.revocations_per_hour,
        } | ({} if offer.cap_bytes is None else {"memory_cap_bytes": offer.cap_bytes})
        | ({"hosts": hosts[offer.name]} if offer.name in hosts else {})
        for offer, count in ((wanted.offers[k], count) for k, count in used)
    ]  # fmt: skip
    return _model_of(wanted, layout) | {
        "pipelines": layout.pipelines, "stages": len(layout.layers), "cell": layout.cell,
        "microbatches": layout.microbatches(wanted.batch), "chunks": wanted.chunks, "static_bytes": static_of(wanted, layout),
        "sites": sites, "links": links, "baseline_flows": 1 if wanted.one_flow else "max",
    } | ({} if wanted.local_gbps is None else {"local_gbps": wanted.local_gbps}) | _saving(wanted) | _train(layout, more or {})  # fmt: skip


def _train(layout: SiteLayout, more: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be run; a cut of as many layers is the plan's, another one was of another layout."""
    if "train" not in more:
        return {}
    train = {name: value for name, value in more["train"].items() if name != "cut"}
    if sum(more["train"].get("cut") or ()) == sum(layout.layers):
        train["cut"] = list(layout.layers)
    return {"train": train}


def _saving(wanted: PlanRequest) -> dict[str, float]:
    saving = wanted.saving
    if saving is None:
        return {}
    return {
        "checkpoint_every_s": saving.every_s,
        "checkpoint_s": saving.save_s,
        "restart_s": saving.restart_s,
    }


def _model_of(wanted: PlanRequest, layout: SiteLayout) -> dict[str, Any]:
    """What is trained, in the fields of a span file: layers that were measured, or a shape."""
    if wanted.measured is None:
        model = {
            "layers": list(layout.layers), "hidden": wanted.hidden, "sequence": wanted.sequence,
            "microbatch": layout.microbatch, "bytes_per_value": wanted.bytes_per_value,
        }  # fmt: skip
        return {"model": model}
    return {
        "layers": [asdict(layer) for layer in wanted.measured.layers],
        "cut": list(layout.layers),
        "measured": {"microbatch": wanted.measured.microbatch},
        "device_tflops": wanted.measured.tflops,
    }

"""Measured layers of a span file: what they are to the planner and the simulator."""

from __future__ import annotations

from unidle.files.document import Document
from unidle.files.values import memory_bytes
from unidle.span.files.file import LayerPart, PlanFile, SpanFile
from unidle.span.model.layers import LayerCost, ModelCosts
from unidle.span.plan.partition import balanced
from unidle.words import counted


def measured_of(document: Document, file: PlanFile) -> ModelCosts | None:
    """The layers of the file, None where it has none. Errors: :class:`unidle.errors.BadInput`."""
    if file.layers is None:
        if file.cut is not None:
            raise document.error(
                ("cut",), "cuts measured layers, and there are none",
                remedy="add layers (`unidle span profile` measures them), or model.layers: [n, n, ...]",
            )  # fmt: skip
        return None
    no_other_times(document, file)
    layers = tuple(_layer(document, k, part) for k, part in enumerate(file.layers))
    return ModelCosts(layers, file.measured.microbatch if file.measured else 1, file.device_tflops or 1.0)


def no_other_times(document: Document, file: PlanFile) -> None:
    """Errors: :class:`unidle.errors.BadInput` if the file has fields that measured layers replace."""
    for name in ("stage_ns", "activation_bytes", "input_bytes", "state_bytes_per_layer"):
        if getattr(file, name) is not None:
            raise document.error(
                (name,),
                "is there together with layers, which state the same",
                remedy="leave one of the two out",
            )


def _layer(document: Document, k: int, part: LayerPart) -> LayerCost:
    if part.forward_ns + part.backward_ns + part.weight_ns == 0:
        raise document.error(
            ("layers", k, "forward_ns"), "all its times are 0", value=0, remedy="measure it again"
        )
    parameters = memory_bytes(part.parameters_bytes)
    gradient = parameters if part.gradient_bytes is None else memory_bytes(part.gradient_bytes)
    return LayerCost(
        part.forward_ns, part.backward_ns, part.weight_ns,
        part.forward_ns if part.recompute_ns is None else part.recompute_ns, memory_bytes(part.kept_bytes),
        memory_bytes(part.input_bytes), part.keeps_input, parameters, gradient, memory_bytes(part.optimizer_bytes),
        part.name,
    )  # fmt: skip


def cut_of(document: Document, file: SpanFile, measured: ModelCosts) -> tuple[int, ...]:
    """Layers of each stage."""
    there = len(measured.layers)
    if file.cut is None:
        counts = balanced(there, [1.0] * file.stages, there)
        if counts is None:
            raise document.error(
                ("stages",), f"are more than the {counted(there, 'layer')}", value=file.stages,
                remedy="each stage has at least one",
            )  # fmt: skip
        return counts
    if len(file.cut) != file.stages:
        raise document.error(
            ("cut",), f"gives {len(file.cut)} of {counted(file.stages, 'stage')}",
            remedy="one number for each stage",
        )  # fmt: skip
    if sum(file.cut) != there:
        raise document.error(
            ("cut",), f"has {counted(sum(file.cut), 'layer')}, and the model {there}", value=list(file.cut),
            remedy=f"let them sum to {there}",
        )  # fmt: skip
    return file.cut


def speed_of(document: Document, file: PlanFile, site: int, measured: ModelCosts) -> float:
    """The speed of a site's devices, in the unit of ``measured.tflops``."""
    own = file.sites[site].device_tflops if file.sites else None
    if own is not None and file.device_tflops is None:
        raise document.error(
            ("sites", site, "device_tflops"), "has no meaning without the speed of the device that was measured",
            value=own, remedy="add device_tflops: ... for that one in addition to layers",
        )  # fmt: skip
    return own or measured.tflops

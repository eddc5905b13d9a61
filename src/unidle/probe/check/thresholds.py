"""From what value on a node counts as unfit, by model of device; the shipped ones are in ``thresholds.toml``."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from unidle.files.document import Document

Number = float | None


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits for one model. None: not judged. Rates are for one device; ``_ratio`` is a part of what should be."""

    devices: Number = None
    gpu_temperature_c: Number = None
    gpu_memory_temperature_c: Number = None
    gpu_power_limit_ratio: Number = None
    gpu_clock_ratio: Number = None
    sram_uncorrectable: Number = None
    dram_uncorrectable: Number = None
    remap_pending: Number = None
    remap_failed: Number = None
    ecc_required: bool = False
    persistence_required: bool = False
    fabric_required: bool = False
    pcie_generation: Number = None
    pcie_width: Number = None
    pcie_replays: Number = None
    h2d_gb_per_s: Number = None
    d2h_gb_per_s: Number = None
    nvlinks: Number = None
    nvlink_errors: Number = None
    allreduce_gb_per_s: Number = None
    idle_gpu_memory_bytes: Number = None
    gemm_bf16_tflops: Number = None
    gemm_fp32_tflops: Number = None
    gemm_fp64_tflops: Number = None
    gemm_wrong: Number = None
    carrier_losses_24h: Number = None
    ib_flaps_6h: Number = None
    ib_link_errors_1h: Number = None
    ib_packet_errors_1h: Number = None
    rdma_errors_1h: Number = None
    ib_ports: Number = None
    nic_error_ppm: Number = None
    nic_gbps: Number = None
    free_bytes: Number = None
    free_inodes: Number = None
    fsync_ms: Number = None
    write_mb_per_s: Number = None
    read_mb_per_s: Number = None
    storage_test_bytes: Number = None
    memory_ratio: Number = None
    memory_free_ratio: Number = None
    memory_test_bytes: Number = None
    memory_uncorrectable: Number = None
    memory_corrected: Number = None
    swap_used_ratio: Number = None
    cpu_ratio: Number = None
    cpu_clock_ratio: Number = None
    clock_offset_ms: Number = None
    clock_required: bool = False
    shm_stale_bytes: Number = None
    burn_in_slowest_ratio: Number = None


class Bound(NamedTuple):
    """What a value may be."""

    low: float
    high: float


_KNOWN: Final = {f.name: f.default for f in fields(Thresholds)}
_FLAGS: Final = frozenset(name for name, default in _KNOWN.items() if default is False)
_WHOLE: Final = frozenset({"devices", "nvlinks", "ib_ports", "pcie_width", "pcie_generation"})
_SECTIONS: Final = ("default", "models")


def _bound(name: str) -> Bound:
    if name.endswith("_ratio"):
        return Bound(0, 1)
    if name == "storage_test_bytes":
        return Bound(4096, 1 << 36)
    if name == "memory_test_bytes":
        return Bound(1 << 20, 1 << 40)
    if name.endswith("_c"):
        return Bound(1, 200)
    return Bound(0, 1e15)


@dataclass(frozen=True, slots=True)
class ModelThresholds:
    """Thresholds of all models; immutable."""

    default: Mapping[str, float | bool] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, float | bool]] = field(default_factory=dict)

    def of(self, model: str) -> Thresholds:
        """The thresholds of a device by its driver's name for it; the default's values where its entry has none."""
        entry = self.models.get(self.entry(model), {})
        return Thresholds(**{**self.default, **entry})  # type: ignore[arg-type]  # checked when it was read

    def entry(self, model: str) -> str:
        """The entry that a device's name belongs to; empty where none fits."""
        words = _words(model)
        fitting = [name for name in self.models if _words(name) <= words]
        return max(fitting, key=lambda name: (len(_words(name)), name), default="")

    def over(self, other: ModelThresholds) -> ModelThresholds:
        """This book's values before the other's: its default before their default, its models before their models."""
        names = dict.fromkeys((*other.models, *self.models))
        models = {name: {**other.models.get(name, {}), **self.models.get(name, {})} for name in names}
        return ModelThresholds({**other.default, **self.default}, models)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^A-Z0-9]+", name.upper())) - {""}


@cache
def shipped() -> ModelThresholds:
    """The thresholds that unidle brings."""
    from unidle.files.document import Document

    text = files(__package__).joinpath("thresholds.toml").read_text("utf-8")
    return book_of(Document(tomllib.loads(text), "thresholds.toml"))


def load_thresholds(path: str | os.PathLike[str]) -> ModelThresholds:
    """A user's YAML or JSON file (``-``: standard input), over the shipped ones.

    Errors: :class:`unidle.errors.BadInput` with the line, for an unknown name or a value that makes no sense.
    """
    from unidle.files.document import Bounds
    from unidle.files.load import load_document

    return book_of(load_document(path, what="thresholds", bounds=Bounds())).over(shipped())


def book_of(document: Document) -> ModelThresholds:
    """``{default: {NAME: VALUE}, models: {MODEL: {NAME: VALUE}}}``. Errors: see :func:`load_thresholds`."""
    data = document.data
    if not isinstance(data, Mapping):
        remedy = "the shortest form is: default: {fsync_ms: 500}"
        raise document.error((), "a thresholds file must be a mapping", value=data, remedy=remedy)
    for name in data:
        if name not in _SECTIONS:
            remedy = "put thresholds for every node under default, others under models"
            raise document.error((name,), "is not a part of a thresholds file", value=name, remedy=remedy)
    default = _values(document, ("default",), data.get("default", {}))
    models = data.get("models", {})
    if not isinstance(models, Mapping):
        raise document.error(("models",), "must be a mapping", value=models, remedy="models: {H100: {...}}")
    found = {}
    for name, values in models.items():
        if not _words(str(name)):
            raise document.error(("models", name), "is no name of a model", value=name, remedy="such as H100")
        found[str(name)] = _values(document, ("models", str(name)), values)
    return ModelThresholds(default, found)


def _values(document: Document, path: tuple[str, ...], values: object) -> dict[str, float | bool]:
    if not isinstance(values, Mapping):
        raise document.error(path, "must be a mapping of names to values", value=values, remedy="such as {fsync_ms: 500}")  # fmt: skip
    for name, value in values.items():
        at = (*path, str(name))
        if name not in _KNOWN:
            near = get_close_matches(str(name), _KNOWN, 1)
            remedy = f"did you mean {near[0]}?" if near else "docs/how-to/check.md lists them"
            raise document.error(at, "there is no such threshold", value=name, remedy=remedy)
        if name in _FLAGS:
            if not isinstance(value, bool):
                raise document.error(at, "must be true or false", value=value, remedy="write true or false")
            continue
        low, high = _bound(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise document.error(
                at, "must be a number", value=value, remedy="leave it out to keep the default"
            )
        if not low <= value <= high:  # NaN fails too
            raise document.error(
                at, f"must be from {low:g} to {high:g}", value=value, remedy="see its unit in the name"
            )
        if name in _WHOLE and value != int(value):
            raise document.error(at, "must be a whole number", value=value, remedy="round it")
    return dict(values)

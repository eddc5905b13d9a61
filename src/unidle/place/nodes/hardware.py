"""A fleet's slices of one kind of device as arrays, and which devices a gang may use together, in which order.

A node's slices are bits of a mask, in the order of ``Occupancy``: 64 to a word, words in rising order.

A gang never mixes vendors. It mixes models of GPU only if the job allows it, or if no single model of the
fleet could ever hold it, because all ranks then run at the speed of the slowest. A job's wish for a model
(``hardware: {prefer: speed | cost}``) is decided by measured steps of similar jobs. Without a wish or
measurements the cheapest model comes first, or without prices the most plentiful: scarce or expensive
models are kept for jobs that name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unidle.fleet import WHOLE_PPM, Device, Node, Slice, slices_of
from unidle.jobs import JobSpec, Share, Where
from unidle.jobs.speeds import SpeedRun, known_of
from unidle.place.network.tree import Bools, Ints
from unidle.place.protocol import KINDS
from unidle.predict.by_gpu_model import Forecast, forecasts, price_of
from unidle.share.mig_models import mig_models, model_of, named_so
from unidle.share.select import may_use, may_use_any, names_model
from unidle.view.speeds import job_runs
from unidle.words import counted, latency

if TYPE_CHECKING:
    from unidle.fleet import Fleet
    from unidle.view.jobs import JobView
    from unidle.view.state import View

_MEMO: Final = 256
Model = tuple[str, str]  # vendor, model


class DevicePool(NamedTuple):
    """Devices of one kind, of one vendor (empty: whichever), of these models (none: all)."""

    kind: str
    vendor: str = ""
    models: tuple[str, ...] = ()

    def has(self, device: Device) -> bool:
        """Whether the device belongs to it."""
        if device.kind != self.kind or (self.vendor and device.vendor != self.vendor):
            return False
        return not self.models or device.model in self.models


NO_DEVICES: Final = DevicePool("cpu")
"""For ranks without devices: they count as work for CPUs, whatever the fleet's devices are."""


@dataclass(frozen=True, slots=True)
class Option:
    """A pool that a job may use; ``forecast`` is of its one model, where its speed is known."""

    pool: DevicePool
    forecast: Forecast | None = None
    price_per_hour: float | None = None

    @property
    def mixed(self) -> bool:
        return len(self.pool.models) > 1

    @property
    def on(self) -> str:
        """`` on MODEL``, where the pool is of some models only."""
        return f" on {self.name}" if self.pool.models else ""

    @property
    def name(self) -> str:
        return " and ".join(model or f"{self.pool.vendor} GPUs" for model in self.pool.models)


class FleetPools:
    """The GPUs of a fleet by vendor and model, and the pools of each kind of job."""

    def __init__(self, fleet: Fleet) -> None:
        self._prices, self._currency = fleet.prices_per_device_hour, fleet.currency
        self.count: dict[Model, int] = {}
        for device in fleet.devices():
            if device.kind == "gpu":
                key = (device.vendor, device.model)
                self.count[key] = self.count.get(key, 0) + 1
        self._memo: dict[object, tuple[Option, ...]] = {}

    @property
    def uniform(self) -> bool:
        """Whether all GPUs are of one vendor and model: then there is nothing to choose."""
        return len(self.count) < 2

    def options(
        self, spec: JobSpec, view: View | None = None, job: JobView | None = None
    ) -> tuple[Option, ...]:
        """The pools of such a job, in the order in which they are tried; at least one.

        Mixed ones come behind those of one model. ``job`` adds what its own attempts showed.
        """
        if not spec.needs_devices:
            return (Option(NO_DEVICES),)
        if self.uniform:
            key: object = (spec.device, spec.hardware.vendor)
            return self._memo.get(key) or self._keep(key, self._options(spec, ()))
        key = (spec.device, spec.where.models, spec.hardware, spec.price_per_device_hour)
        if view is None or spec.hardware.prefer == "none":
            return self._memo.get(key) or self._keep(key, self._options(spec, ()))
        known = known_of(view.speeds, spec.user, spec.name)
        own = tuple(job_runs(view.book, job)) if job is not None and job.attempts else ()
        key = (key, spec.devices, spec.user, spec.name, known.count, own)
        return self._memo.get(key) or self._keep(key, self._options(spec, (*known.runs, *own)))

    def vendors(self, spec: JobSpec) -> tuple[DevicePool, ...]:
        """Pools of whole vendors, in the order of the fleet."""
        if not spec.needs_devices:
            return (NO_DEVICES,)
        wanted = spec.hardware.vendor
        gpus = dict.fromkeys(v for v, _ in self.count if wanted in ("any", v)) or {_any(wanted): None}
        pools = {"gpu": [DevicePool("gpu", v) for v in gpus], "cpu": [DevicePool("cpu")]}
        return tuple(pool for kind in KINDS[spec.device] for pool in pools[kind])

    def _keep(self, key: object, options: tuple[Option, ...]) -> tuple[Option, ...]:
        if len(self._memo) >= _MEMO:
            self._memo.clear()
        self._memo[key] = options
        return options

    def _options(self, spec: JobSpec, runs: Sequence[SpeedRun]) -> tuple[Option, ...]:
        found: list[Option] = []
        for kind in KINDS[spec.device]:
            if kind == "gpu":
                found += self._gpus(spec, runs)
            else:
                found.append(Option(DevicePool(kind)))
        return tuple(found)

    def _gpus(self, spec: JobSpec, runs: Sequence[SpeedRun]) -> list[Option]:
        allowed = [m for m in self.count if _may_use(spec, m)]
        if self.uniform or not allowed:
            return [Option(DevicePool("gpu", _any(spec.hardware.vendor)))]
        predicted = forecasts(runs, [model for _, model in allowed], spec, self._prices) if runs else {}
        single = [
            Option(
                DevicePool("gpu", vendor, (model,)), predicted.get(model), price_of(spec, model, self._prices)
            )
            for vendor, model in self._in_order(allowed, spec, predicted)
        ]
        together: dict[str, list[str]] = {}
        for vendor, model in allowed:  # in the fleet's order: the same pool whatever is known of speeds
            together.setdefault(vendor, []).append(model)
        mixed = [
            Option(DevicePool("gpu", v, tuple(models))) for v, models in together.items() if len(models) > 1
        ]
        return single + mixed

    def _in_order(
        self, allowed: Sequence[Model], spec: JobSpec, predicted: dict[str, Forecast]
    ) -> Sequence[Model]:
        prices = {m: price_of(spec, m[1], self._prices) for m in allowed}
        priced = all(price is not None for price in prices.values())

        def key(model: Model) -> tuple[int, float, float, int]:
            price = prices[model]
            known = _merit(predicted.get(model[1]), spec.hardware.prefer)
            plain = price if priced and price is not None else -float(self.count[model])
            return (
                (0, known, plain, -self.count[model])
                if known is not None
                else (1, 0.0, plain, -self.count[model])
            )

        return sorted(allowed, key=key)

    def why(self, options: Sequence[Option], chosen: Option) -> tuple[str, dict[str, int | float | str]]:
        """Why this pool, in words and figures; empty where there was nothing to choose."""
        single = [option for option in options if option.pool.models and not option.mixed]
        if not chosen.pool.models or len(single) < 2:
            return "", {}
        figures: dict[str, int | float | str] = {"model": chosen.name, "models": len(single)}
        if chosen.mixed:
            return f"on {chosen.name} together, at the speed of the slowest", figures
        if chosen.forecast is not None:
            figures["step_ns"] = chosen.forecast.step.value_ns
            return _by_forecast(single, chosen), figures
        before = single[: single.index(chosen)]
        text = f"on {chosen.name}"
        if chosen.price_per_hour is not None and all(o.price_per_hour is not None for o in single):
            text += f" for {chosen.price_per_hour:g} {self._currency} an hour each"
            what = "cheapest"
        else:
            what = "most plentiful"
        if before:
            return f"{text}: {_names(before)} would come first, without room for it now", figures
        return f"{text}, the {what} of {counted(len(single), 'model')} that it may use", figures


def _may_use(spec: JobSpec, model: Model) -> bool:
    wanted, rule = spec.hardware.vendor, spec.where.models
    if wanted not in ("any", model[0]) or any(names_model(n, model[1]) for n in rule.exclude):
        return False
    return not rule.include or any(names_model(n, model[1]) for n in rule.include)


def _any(vendor: str) -> str:
    return "" if vendor == "any" else vendor


def _merit(forecast: Forecast | None, prefer: str) -> float | None:
    """What is to be small: ns a step, or money a step; None where it is not known or not asked for."""
    if forecast is None or prefer == "none":
        return None
    if prefer == "speed":
        return float(forecast.step.value_ns)
    return forecast.cost_per_step


def _by_forecast(single: Sequence[Option], chosen: Option) -> str:
    forecast = chosen.forecast
    assert forecast is not None
    how = "measured" if forecast.measured else "predicted"
    text = f"on {chosen.name}: {latency(forecast.step.value_ns)} a step {how}"
    other = next((o for o in single if o is not chosen and o.forecast is not None), None)
    if other is not None and other.forecast is not None:
        text += f", {_compared(forecast, other.forecast)} {other.name}"
    before = single[: single.index(chosen)]
    return f"{text}; {_names(before)} would come first, without room for it now" if before else text


def _compared(one: Forecast, other: Forecast) -> str:
    """``1.3x cheaper than``: what one is compared with the other, in money where both have a price."""
    ours, theirs, words = one.cost_per_step, other.cost_per_step, ("cheaper", "dearer")
    if not one.by_cost or not ours or not theirs:
        ours, theirs, words = float(one.step.value_ns), float(other.step.value_ns), ("faster", "slower")
    ratio = max(ours, theirs) / min(ours, theirs)
    return f"{ratio:.2g}x {words[ours > theirs]} than"


def _names(options: Sequence[Option]) -> str:
    return " and ".join(option.name for option in options)


Masks: TypeAlias = NDArray[np.uint64]
"""Shape (N, W): by node, W words of 64 slices each."""

WORD: Final = 64
_LOW: Final = (1 << WORD) - 1


class SliceMasks:
    """All slices of one kind; arrays have one row for each node that has some, one column for each bit."""

    def __init__(self, kind: str, nodes: Sequence[Node], positions: Sequence[int]) -> None:
        """``positions`` are those of the nodes that have devices of the kind."""
        self.kind, self._nodes = kind, nodes
        self._rows: Ints = np.array(positions, np.int64)
        alike: dict[tuple[_Form, ...], list[int]] = {}  # rows of nodes with the same devices
        for row, position in enumerate(positions):
            alike.setdefault(_form(nodes[position], kind), []).append(row)
        width = max((sum(len(cut) for _, cut, _ in forms) for forms in alike), default=0)
        self.words = max(-(-width // WORD), 1)
        shape = (len(positions), width)
        self._model = np.full(shape, -1, np.int32)  # -1: no such slice
        self._ppm = np.zeros(shape, np.int32)
        self._memory = np.zeros(shape, np.int64)  # bytes of the slice
        self._cut = np.zeros(shape, np.bool_)
        self._models: dict[tuple[str, str, int], tuple[int, Device]] = {}  # by vendor, model and memory
        for rows in alike.values():
            for bit, (device, piece) in enumerate(pieces_of(nodes[positions[rows[0]]], kind)):
                model = (device.vendor, device.model, device.memory_bytes)
                code = self._models.setdefault(model, (len(self._models), device))[0]
                self._model[rows, bit], self._ppm[rows, bit] = code, piece.share_ppm
                self._memory[rows, bit] = device.memory_bytes * piece.share_ppm // WHOLE_PPM
                self._cut[rows, bit] = len(device.slices_ppm) > 1
        self._some_cut = bool(self._cut.any())
        # where some devices are not cut, parts are for those who ask for parts
        self._some_whole = bool((~self._cut & (self._model >= 0)).any())
        # what the parts count that there are, in ppm of a device
        self._part_sizes = np.unique(self._ppm[self._cut]).tolist()

    def allowed(self, spec: JobSpec, open_nodes: Bools, pool: DevicePool) -> Masks:
        """The slices of a pool that a job with these wishes may ever use.

        ``open_nodes``, (N,), are those it may use at all.
        """
        fits = (self._model >= 0) & open_nodes[self._rows][:, None]
        if pool.vendor or pool.models:
            fits &= np.isin(self._model, [code for code, device in self._models.values() if pool.has(device)])
        if not may_use_any(spec.where):
            fits &= self._chosen(spec.where)
        if spec.share is not None:
            fits &= self._parts(spec.share)
        elif self._some_cut and self._some_whole:
            fits &= ~self._cut
        return self._packed(fits)

    def uneven(self, spec: JobSpec) -> bool:
        """Whether the slices that this job may have are parts that count differently."""
        return len(self._part_sizes) > 1 and (spec.share is not None or not self._some_whole)

    def _chosen(self, where: Where) -> Bools:
        if where.uuids.include or where.uuids.exclude:
            found = np.zeros(self._model.shape, np.bool_)
            for row, position in enumerate(self._rows.tolist()):
                for bit, (device, _) in enumerate(pieces_of(self._nodes[position], self.kind)):
                    found[row, bit] = may_use(device, where) is None
            return found
        codes = [code for code, device in self._models.values() if may_use(device, where) is None]
        named: Bools = np.isin(self._model, codes)
        return named

    def _parts(self, share: Share) -> Bools:
        """Declared slices that are large enough, on devices that can isolate them in the mode that the share requires."""
        enough: Bools = self._cut & (self._ppm >= share.compute_ppm) & (self._memory >= share.memory_bytes)
        if share.profile or share.mode != "any":
            least = np.array([_least_ppm(device, share) for _, device in self._models.values()], np.int64)
            enough &= self._ppm >= least[self._model]
        return enough

    def _packed(self, fits: Bools) -> Masks:
        masks = np.zeros((len(self._nodes), self.words * WORD // 8), np.uint8)
        packed = np.packbits(fits, axis=1, bitorder="little")
        masks[self._rows, : packed.shape[1]] = packed
        return masks.view("<u8").astype(np.uint64, copy=False)


def _least_ppm(device: Device, share: Share) -> int:
    """What a slice of this device has at least for a MIG profile or a mode; more than all where it never does."""
    if device.kind == "cpu" or (device.vendor != "nvidia" and (share.profile or share.mode != "time")):
        return WHOLE_PPM + 1
    if not share.profile and share.mode != "mig":
        return 0
    known = model_of(device.model, device.memory_bytes)
    maybe = (known,) if known else named_so(device.model) if device.model else mig_models()
    if not share.profile:
        return 0 if maybe else WHOLE_PPM + 1
    sizes = (model.compute_ppm(model.profile(share.profile)) for model in maybe if model.knows(share.profile))
    return min(sizes, default=WHOLE_PPM + 1)


_Form: TypeAlias = tuple[tuple[str, str], tuple[int, ...], int]


def _form(node: Node, kind: str) -> tuple[_Form, ...]:
    """What counts of a node's devices here: vendor and model, cut and memory."""
    return tuple(((d.vendor, d.model), d.slices_ppm, d.memory_bytes) for d in node.devices if d.kind == kind)


def pieces_of(node: Node, kind: str) -> list[tuple[Device, Slice]]:
    """A node's slices of one kind, in the order of its bit mask; a device that is cut on demand is one there."""
    return [
        (device, piece)
        for device in node.devices
        if device.kind == kind
        for piece in (slices_of(device) if device.cut is None else [Slice(device.id, device.id, WHOLE_PPM)])
    ]


def words_of(mask: int, words: int) -> list[int]:
    """A mask as words."""
    return [mask] if words == 1 else [mask >> WORD * k & _LOW for k in range(words)]


def mask_of(words: Masks) -> int:
    """Words, shape (W,), as a mask."""
    found: list[int] = words.tolist()
    return found[0] if len(found) == 1 else sum(word << WORD * k for k, word in enumerate(found))


def count_slices(masks: Masks) -> Ints:
    """How many slices each row has. Shape (N,)."""
    ones = np.bitwise_count(masks)
    found: Ints = ones[:, 0].astype(np.int64) if ones.shape[1] == 1 else ones.sum(axis=1, dtype=np.int64)
    return found

"""Whether the devices of watched attempts are used: GPUs by NVML, CPU devices by the CPU time of the ranks.

NVML: NVML API reference, "Device Queries".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from unidle.engine.protocol import Utilised, WatchGang
from unidle.events.types import Use
from unidle.fleet import Device, Fleet
from unidle.jobs import RankPlace
from unidle.nvml import load

if TYPE_CHECKING:
    from unidle.fleet.nvml import Nvml

QUIET_PERIODS: Final = 5
GPU_EVERY_NS: Final = 10_000_000_000  # the driver keeps samples of not much longer than that
_PPM: Final = 1_000_000


class MeasuredRank(Protocol):
    """A rank of this machine: only one whose ``state`` is ``alive`` is measured."""

    @property
    def rank(self) -> int: ...

    @property
    def state(self) -> str: ...

    def pids(self) -> set[int]:
        """Every process of the rank."""
        ...

    def cpu_ns(self) -> int | None:
        """CPU time that it has used; None where that cannot be read."""
        ...


Key = tuple[str, int]
RanksOf = Callable[[Key | None], Sequence[MeasuredRank]]
_PERCENT_PPM: Final = 10_000


@dataclass(slots=True)
class _Watched:
    command: WatchGang
    places: Mapping[int, RankPlace]
    every_ns: int
    at_ns: int = 0  # of the last look; 0: none yet
    cpu_ns: dict[int, int] = field(default_factory=dict)  # rank -> its counter then
    quiet_ns: int | None = None  # from when on every look found it quiet
    told: tuple[Use, str] | None = None


class Utilisation:
    """Measures the attempts that it was asked to watch. ``ranks_of`` gives an attempt's ranks here, None all ranks.

    The places of a command are those of the ranks that are here, at least.
    """

    def __init__(self, fleet: Fleet, ranks_of: RanksOf, gpus: GpuMeter | None = None) -> None:
        self._devices: dict[str, Device] = {device.id: device for device in fleet.devices()}
        self._ranks_of = ranks_of
        self._gpus = gpus
        self._watched: dict[Key, _Watched] = {}

    def watch(self, command: WatchGang) -> None:
        """Begin to measure, or cease to."""
        key = (command.job, command.attempt)
        if not command.every_ns:
            self._watched.pop(key, None)
        elif key not in self._watched:
            places = {place.rank: place for place in command.places}
            self._watched[key] = _Watched(command, places, self._every_ns(command))

    def forget(self, key: Key) -> None:
        self._watched.pop(key, None)

    def repeat(self) -> None:
        """Report all that is found once more: who takes the reports has lost some."""
        for watched in self._watched.values():
            watched.told = None

    def poll(self, now_ns: int) -> list[Utilised]:
        """What changed, of attempts whose next look is due."""
        found = []
        for key, watched in self._watched.items():
            if now_ns - watched.at_ns < watched.every_ns:
                continue
            told = self._look(watched, self._ranks_of(key), now_ns)
            if told is not None and (told.use, told.text) != watched.told:
                watched.told = (told.use, told.text)
                found.append(told)
        return found

    def _look(self, watched: _Watched, ranks: Sequence[MeasuredRank], now_ns: int) -> Utilised | None:
        before_ns, watched.at_ns = watched.at_ns, now_ns
        uses = [
            self._rank(watched, rank, now_ns - before_ns if before_ns else 0)
            for rank in ranks
            if rank.state == "alive" and rank.rank in watched.places
        ]
        key = (watched.command.job, watched.command.attempt)
        if not before_ns:
            return None  # the counters' first reading
        if any(use.busy for use in uses):
            watched.quiet_ns = None
            return Utilised(*key, "busy", now_ns)
        unknown = next((use for use in uses if use.busy is None), None)
        if unknown is not None:
            watched.quiet_ns = None
            return Utilised(*key, "unknown", now_ns, unknown.why)
        if watched.quiet_ns is None:
            watched.quiet_ns = before_ns
        long_enough = now_ns - watched.quiet_ns >= QUIET_PERIODS * watched.command.every_ns
        return Utilised(*key, "quiet", watched.quiet_ns) if long_enough else None

    def _every_ns(self, command: WatchGang) -> int:
        on_gpus = any(self._gpus_of(place) for place in command.places)
        return min(command.every_ns, GPU_EVERY_NS) if on_gpus else command.every_ns

    def _gpus_of(self, place: RankPlace) -> list[tuple[Device, bool]]:
        """The GPUs of a rank, and whether it has only a part of each."""
        return [
            (device, piece != device.id)
            for piece in place.slices
            if (device := self._devices.get(piece.partition("#")[0])) is not None and device.kind == "gpu"
        ]

    def _rank(self, watched: _Watched, rank: MeasuredRank, window_ns: int) -> GpuUse:
        """Whether the rank's devices were used in the last ``window_ns`` (0: only the counters are read)."""
        gpus = self._gpus_of(watched.places[rank.rank])
        if not gpus:
            return self._cpu(watched, rank, window_ns)
        if self._gpus is None:
            self._gpus = GpuMeter()
        meter, busy_ppm = self._gpus, watched.command.busy_ppm
        uses = [
            meter.look(device, busy_ppm, rank.pids if is_part else None, self._all_pids)
            for device, is_part in gpus
        ]
        return next((u for u in uses if u.busy), None) or next(
            (u for u in uses if u.busy is None), GpuUse(False)
        )

    def _cpu(self, watched: _Watched, rank: MeasuredRank, window_ns: int) -> GpuUse:
        used_ns = rank.cpu_ns()
        if used_ns is None:
            return GpuUse(None, f"the CPU time of rank {rank.rank} cannot be read")
        before_ns = watched.cpu_ns.get(rank.rank, used_ns)
        watched.cpu_ns[rank.rank] = used_ns
        return GpuUse(window_ns > 0 and (used_ns - before_ns) * _PPM >= watched.command.busy_ppm * window_ns)

    def _all_pids(self) -> set[int]:
        return {pid for rank in self._ranks_of(None) if rank.state == "alive" for pid in rank.pids()}


class GpuUse(NamedTuple):
    """``busy``: whether the rank's part of the GPU was used; None if that is unknown, and ``why``."""

    busy: bool | None
    why: str = ""


class GpuMeter:
    """Reads the use of GPUs from NVML. A reading covers the time since the one before, as far as the driver's buffer reaches."""

    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = nvml
        self._missing = ""
        self._seen_us: dict[str, int] = {}  # device -> its newest sample
        if nvml is None:
            self._open()

    def look(
        self,
        device: Device,
        busy_ppm: int,
        mine: Callable[[], set[int]] | None,
        known: Callable[[], set[int]],
    ) -> GpuUse:
        """Whether the GPU was busy.

        ``mine`` are the processes of a rank that has only a part of it (None: it has all of it), ``known``
        those of all ranks here. A part is quiet while the whole is, or while all that is busy is known to be
        another rank's.
        """
        if self._nvml is None:
            return GpuUse(None, self._missing)
        if device.vendor != "nvidia":
            return GpuUse(None, f"the utilisation of {device.vendor} GPUs is not read")
        nvml, since_us = self._nvml, self._seen_us.get(device.id, 0)
        try:
            handle = (
                nvml.nvmlDeviceGetHandleByUUID(device.uuid)
                if device.uuid
                else nvml.nvmlDeviceGetHandleByIndex(device.index)
            )
            peak_ppm = self._peak_ppm(handle, device.id, since_us)
            if peak_ppm < busy_ppm:
                return GpuUse(False)
            if mine is None:
                return GpuUse(True)
            return _part(nvml, handle, since_us, busy_ppm, mine(), known())
        except nvml.NVMLError as error:
            return GpuUse(None, f"NVML has no utilisation of {device.id}: {error}")

    def _open(self) -> None:
        try:
            nvml = load()
            nvml.nvmlInit()
        except Exception as error:  # a broken driver shows in many ways
            self._missing = f"NVML cannot be asked: {error}"
        else:
            self._nvml = nvml

    def _peak_ppm(self, handle: Any, device: str, since_us: int) -> int:
        """The highest of the samples since; the last period's where the driver keeps none."""
        nvml = self._nvml
        assert nvml is not None
        try:
            _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
        except nvml.NVMLError:
            samples = ()
        new = [s for s in samples if s.timeStamp > since_us]
        if not new:
            return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) * _PERCENT_PPM
        self._seen_us[device] = max(s.timeStamp for s in new)
        return max(int(s.sampleValue.uiVal) for s in new) * _PERCENT_PPM


def _part(nvml: Nvml, handle: Any, since_us: int, busy_ppm: int, mine: set[int], known: set[int]) -> GpuUse:
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except nvml.NVMLError as error:
        return GpuUse(None, f"others use the same GPU, and NVML does not separate them: {error}")
    busy = {s.pid for s in samples if s.smUtil * _PERCENT_PPM >= busy_ppm}
    if busy & mine:
        return GpuUse(True)
    if busy and busy <= known:
        return GpuUse(False)
    return GpuUse(None, "others use the same GPU, and NVML does not show which process uses it")

"""How busy GPUs were since they were last asked, by NVML (NVML API reference, "Device Queries").

NVML comes in as an argument (the module ``pynvml`` fits), so that recorded answers read the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from unidle.fleet import Device
from unidle.nvml import load

if TYPE_CHECKING:
    from unidle.fleet.nvml import Nvml

_PERCENT_PPM: Final = 10_000


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

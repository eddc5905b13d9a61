"""NVIDIA's library as the probes ask it. It comes in as an argument, so that recorded answers read the same.

Functions and constants are those of the NVML API reference; a driver, a model or a virtual machine that does not
answer one of them raises ``NVMLError``, which is no fault of the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from unidle.fleet.nvml import Nvml
from unidle.fleet.pci import short_bus_id
from unidle.nvml import load

T = TypeVar("T")


class Missing(Exception):
    """The library cannot be opened or does not start; the text is the reason. ``code``: NVML's error, if it gave one."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One device of NVML."""

    index: int
    handle: Any = field(compare=False)  # of ctypes, which cannot be hashed
    model: str
    bus_id: str

    @property
    def name(self) -> str:
        return f"GPU {self.index}"


@contextmanager
def opened(given: Nvml | None) -> Iterator[Nvml]:
    """NVML, initialised. Errors: :class:`Missing`."""
    nvml = given
    if nvml is None:
        try:
            nvml = load()
        except (OSError, ImportError) as error:
            raise Missing(f"NVML cannot be opened: {error}") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Missing(f"NVML does not start: {error}", getattr(error, "value", None)) from None
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def gpus(nvml: Nvml) -> Iterator[NvmlGpu]:
    """All devices that answer. One that is lost is found by the count."""
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError:
            continue
        model = ask(nvml, "nvmlDeviceGetName", handle)
        pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
        bus = pci.busId if pci is not None else ""
        yield NvmlGpu(index, handle, _text(model or ""), short_bus_id(_text(bus)))


def ask(nvml: Nvml, function: str, *arguments: object, read: Callable[[Any], T] | None = None) -> Any:
    """What the function answers; None where this library, driver or device has no answer."""
    try:
        answer = getattr(nvml, function)(*arguments)
        return read(answer) if read else answer
    except (nvml.NVMLError, AttributeError):
        return None


def filled(nvml: Nvml, function: str, handle: Any, structure: str) -> Any:
    """The structure of that name after the function has filled it; None as of :func:`ask`."""
    kind = getattr(nvml, structure, None)
    if kind is None:
        return None
    answer = kind()
    return None if ask(nvml, function, handle, ctypes.byref(answer)) is None else answer


def constant(nvml: Nvml, name: str) -> int | None:
    """A constant of the library, None where it is older than that."""
    found = getattr(nvml, name, None)
    return None if found is None else int(found)


def field_value(nvml: Nvml, handle: Any, name: str, scope: int = 0) -> int | None:
    """One of NVML's field values by the name of its constant (``NVML_FI_DEV_...``)."""
    number = constant(nvml, name)
    if number is None:
        return None
    answers = ask(nvml, "nvmlDeviceGetFieldValues", handle, [(number, scope)])
    if not answers or answers[0].nvmlReturn != 0:
        return None
    answer = answers[0]
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t
    kind = kinds[answer.valueType] if 0 <= answer.valueType < len(kinds) else "ullVal"
    return int(getattr(answer.value, kind))


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)

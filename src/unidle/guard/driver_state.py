"""What is wrong with NVIDIA's driver when its library cannot be used. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unidle.guard.log.model import Action, Finding
from unidle.words import are, counted

# nvmlReturn_t of the NVML API reference
_NO_PERMISSION, _NOT_LOADED, _MISMATCH = 4, 9, 18
_RANK: Final = 70


@dataclass(frozen=True, slots=True)
class DriverLook:
    """Why NVML cannot be used: ``error``, and its number ``code``; None where the library itself cannot be opened.

    ``module``: version of the kernel module, None where it is not loaded. ``library``: version of NVML, empty if unknown.
    ``gpus``: GPUs on PCI that NVIDIA's driver has, or no driver. ``door``: whether ``/dev/nvidiactl`` exists.
    """

    error: str
    code: int | None = None
    module: str | None = None
    library: str = ""
    gpus: int = 0
    door: bool = True


@dataclass(frozen=True, slots=True)
class DriverState:
    """``key``: identifies the state, empty for a working driver. ``why``: no GPU is seen. ``fault``: if the state is one."""

    key: str
    why: str
    fault: Finding | None = None


WELL: Final = DriverState("", "")


def driver_state(look: DriverLook) -> DriverState:
    """The state of the driver, from a failure to open NVML.

    It is a fault only where the machine itself shows that a driver should be at work: a fleet may declare GPUs that are
    elsewhere, and a container may have been given none.
    """
    if look.code == _MISMATCH:
        versions = (
            f"NVML is {look.library or 'of one version'}, the kernel module {look.module or 'of another'}"
        )
        text = (
            f"the driver's library and kernel module do not match ({versions}): no new process can use a GPU"
        )
        return _faulty("mismatch", look, text, "drain", "restart the machine, or load the module again")
    if look.code is None:
        return DriverState("missing", f"{look.error}; install the driver, or run where it is")
    if look.code == _NO_PERMISSION:
        return DriverState("refused", f"{look.error}; run as root, or as a user who may open /dev/nvidiactl")
    if look.module is None and look.gpus:
        text = (
            f"{counted(look.gpus, 'GPU')} {are(look.gpus)} here, and the kernel module nvidia is not loaded"
        )
        return _faulty(
            "unloaded", look, text, "drain", "run `modprobe nvidia`; `dmesg` shows why it is not loaded"
        )
    if look.module is not None and look.door:
        text = f"the kernel module nvidia {look.module} is loaded, but does not answer: {look.error}"
        return _faulty("dead", look, text, "reboot_node", "restart the machine")
    if look.module is not None and look.code == _NOT_LOADED:
        return DriverState(
            "no door", f"{look.error}: there is no /dev/nvidiactl; give the container its GPUs"
        )
    return DriverState("missing", f"{look.error}; install the driver, or run where it is")


def died(error: str) -> DriverState:
    """The state of a driver that has answered before."""
    fault = _finding(f"the driver does not answer any more: {error}", "reboot_node")
    return DriverState("dead", f"NVML: {error}", fault)


def _faulty(key: str, look: DriverLook, text: str, action: Action, remedy: str) -> DriverState:
    return DriverState(key, f"{look.error}: {text}; {remedy}", _finding(text, action))


def _finding(text: str, action: Action) -> Finding:
    return Finding(0, "driver", None, "", "culprit", action, text, "fatal", _RANK)

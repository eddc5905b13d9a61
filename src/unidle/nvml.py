"""NVML, NVIDIA's library for its devices, and the module that calls it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from unidle.fleet.nvml import Nvml

_LIBRARY: Final = "libnvidia-ml.so.1"


def load(*, driver_first: bool = True) -> Nvml:
    """The module ``pynvml``, before ``nvmlInit``.

    Errors: OSError if this machine has no driver (with ``driver_first``; else ``nvmlInit`` reports it), ImportError
    without the module.
    """
    if driver_first:
        ctypes.CDLL(_LIBRARY)  # importing pynvml takes as long as starting Python
    import pynvml  # type: ignore[import-untyped]

    return cast("Nvml", pynvml)

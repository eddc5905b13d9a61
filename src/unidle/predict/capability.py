"""Peak speeds of GPUs as their vendors state them: what carries measured steps over to another model.

Dense 16-bit matrix arithmetic with 32-bit accumulation, without sparsity, in TFLOP/s. Sources: the vendors' data
sheets of each product (NVIDIA: V100, T4, A10, A30, A40, A100, L4, L40, L40S, H100, H100 NVL, H200 Tensor Core GPU,
where figures with sparsity are halved; AMD: Instinct MI210, MI250, MI250X, MI300X, MI325X). A model that is not
here is known only by its own steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from unidle.share.select import names_model


class Peak(NamedTuple):
    """``name`` as people write it (see ``share.select``); the first that fits a model counts."""

    name: str
    vendor: str
    tflops: float


PEAKS: Final = (
    Peak("H100 PCIe", "nvidia", 756.5),
    Peak("H100 NVL", "nvidia", 835.5),
    Peak("H100", "nvidia", 989.4),
    Peak("H200", "nvidia", 989.4),
    Peak("A100", "nvidia", 312.0),
    Peak("A40", "nvidia", 149.7),
    Peak("A30", "nvidia", 165.0),
    Peak("A10", "nvidia", 125.0),
    Peak("L40S", "nvidia", 362.0),
    Peak("L40", "nvidia", 181.0),
    Peak("L4", "nvidia", 121.0),
    Peak("V100 PCIe", "nvidia", 112.0),
    Peak("V100", "nvidia", 125.0),
    Peak("T4", "nvidia", 65.0),
    Peak("MI325X", "amd", 1307.4),
    Peak("MI300X", "amd", 1307.4),
    Peak("MI250X", "amd", 383.0),
    Peak("MI250", "amd", 362.1),
    Peak("MI210", "amd", 181.0),
)


@lru_cache(maxsize=1024)
def peak_of(model: str) -> Peak | None:
    """The stated peak of a model, as NVML or a fleet file names it; None where it is not known here."""
    return next((peak for peak in PEAKS if names_model(peak.name, model)), None)


def capabilities(model: str, measured: tuple[str, ...]) -> dict[str, float]:
    """Peaks of ``model`` and of those measured ones that are of its vendor: software differs between vendors."""
    own = peak_of(model)
    if own is None:
        return {}
    peaks = {name: peak_of(name) for name in (model, *measured)}
    return {name: p.tflops for name, p in peaks.items() if p is not None and p.vendor == own.vendor}

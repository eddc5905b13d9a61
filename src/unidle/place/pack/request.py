"""A demand in the numbers of one pool: the equivalence class that scores and masks are kept by."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

WHOLE_MILLI: Final = 1000  # one GPU
IntArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Terms(NamedTuple):
    """Where a request may go, apart from what is free: bit sets over what the pool has interned.

    ``models`` 0 allows every node; ``require`` are labels that a node must have, ``avoid`` taints that
    it must not have.
    """

    models: int = 0
    require: int = 0
    avoid: int = 0


class Request(NamedTuple):
    """One pod or rank; equal requests are one equivalence class. ``gpu_milli`` is per GPU."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0
    terms: Terms = Terms()

    @property
    def total_gpu_milli(self) -> int:
        return self.gpus * self.gpu_milli

    @property
    def part(self) -> bool:
        """Whether it shares a GPU."""
        return self.gpus == 1 and self.gpu_milli < WHOLE_MILLI

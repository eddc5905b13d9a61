"""A pipeline that is trained by the ranks of several sites, from one run plan.

    python -m unidle.span.rank PLAN.json --device SITE/PIPELINE/STAGE --out DIR    # one rank
    python -m unidle.span.rank PLAN.json --single --out DIR                         # the same in one process
    python -m unidle.span.rank PLAN.json --describe                                 # the layers of the model

The model is the user's own ``nn.Module``, cut by layers (:func:`layers_of`); operations follow the plan's order; tensors go over
:mod:`unidle.span.wan`. Parameters after each step equal those of the single process, bit for bit in float64 on the CPU.
Needs PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unidle.span.rank.model import layer_bytes, layers_of

__all__ = ["layer_bytes", "layers_of"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from unidle.span.rank import model

        return getattr(model, name)
    raise AttributeError(name)

"""A pipeline that is trained by the ranks of several sites, from one run plan.

    python -m unidle.rank.span PLAN.json --device SITE/PIPELINE/STAGE --out DIR    # one rank
    python -m unidle.rank.span PLAN.json --single --out DIR                         # the same in one process
    python -m unidle.rank.span PLAN.json --describe                                 # the layers of the model

The model is the user's own ``nn.Module``, cut by layers (:func:`layers_of`); operations follow the plan's order; tensors go over
:mod:`unidle.rank.wan`. Parameters after each step equal those of the single process, bit for bit in float64 on the CPU.
Needs PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unidle.rank.span.model import layer_bytes, layers_of

__all__ = ["layer_bytes", "layers_of"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from unidle.rank.span import model

        return getattr(model, name)
    raise AttributeError(name)

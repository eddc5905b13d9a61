"""Layers of a module that is no Sequential: traced by ``torch.distributed.pipelining`` and split at its longest ModuleList."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from unidle.errors import BadInput


def traced_layers(model: nn.Module, example: Sequence[Any] | None) -> list[nn.Module]:
    """What comes before the list, each of its items, and what comes after; names of parameters stay those of the model.

    ``example``: the arguments of one microbatch, whose shape the layers keep. Errors: BadInput.
    """
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 1}
    if not lists or example is None:
        raise BadInput(
            "is no nn.Sequential and holds no ModuleList", field="model.build", value=type(model).__name__,
            remedy="return an nn.Sequential of its layers",
        )  # fmt: skip
    name = max(lists, key=lambda each: len(lists[each]))
    count = len(lists[name])
    try:
        from torch.distributed.pipelining import SplitPoint, pipeline

        points = {f"{name}.{k}": SplitPoint.BEGINNING for k in range(count)}
        whole = pipeline(model, mb_args=tuple(example), split_spec=points)
        return [whole.get_stage_module(k) for k in range(whole.num_stages)]
    except Exception as error:
        raise BadInput(
            f"cannot be cut at {name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", field="model.build",
            value=type(model).__name__, remedy="return an nn.Sequential of its layers",
        ) from None  # fmt: skip

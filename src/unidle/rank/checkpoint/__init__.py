"""Checkpoints that do not block training, and survive the death of its processes and nodes.

    from unidle.rank.checkpoint import Checkpointer

    ckpt = Checkpointer("checkpoints", model=model, optimizer=optimizer, data=loader)
    start = ckpt.restore()                # steps done; 0 without a checkpoint
    for step in range(start + 1, steps + 1):
        ...
        ckpt.step(step)                   # at the end of each step, on every rank
    ckpt.close()

Needs PyTorch, and works under any launcher (``unidle run``, ``torchrun``) or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unidle.rank.checkpoint.checkpointer import Checkpointer

__all__ = ["Checkpointer"]


def __getattr__(name: str) -> object:
    if name == "Checkpointer":
        from unidle.rank.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(name)

"""The rules, one module for each hundred of codes. To import this package registers all of them."""

from __future__ import annotations

from unidle.tune.rules import (
    attention,
    batching,
    data,
    decoding,
    distributed,
    inference,
    kernels,
    memory,
    optimizer,
    serving,
    step_logs,
    sync,
)

__all__ = [
    "attention", "batching", "data", "decoding", "distributed", "inference", "kernels", "memory", "optimizer", "serving", "step_logs", "sync",
]  # fmt: skip

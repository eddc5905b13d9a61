"""The edits, by what they do. To import this package registers all of them."""

from __future__ import annotations

from unidle.tune.fixes.rules import (
    arguments,
    attention,
    data,
    growing,
    hoisting,
    removal,
    tables,
    tensors,
    without_graph,
)

__all__ = [
    "arguments", "attention", "data", "growing", "hoisting", "removal", "tables", "tensors", "without_graph",
]  # fmt: skip

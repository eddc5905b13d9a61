"""What changed of a node whose devices are as they were, as a value and back. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from msgspec import UNSET

from unidle.events.hosts import NodeEdit
from unidle.fleet import Node

_WHOLE: Final = tuple(name for name in NodeEdit.__struct_fields__ if name not in ("id", "labels"))


def edit_of(before: Node, after: Node) -> NodeEdit | None:
    """What turns a node into another one of the same id; None where their devices differ too."""
    if before.devices != after.devices:
        return None
    had, has = before.labels, after.labels
    labels: dict[str, str | None] = dict.fromkeys(had.keys() - has.keys())
    labels |= {key: value for key, value in has.items() if had.get(key) != value}
    changed = {k: value for k in _WHOLE if (value := getattr(after, k)) != getattr(before, k)}
    return NodeEdit(after.id, dict(sorted(labels.items())), **changed)


def edited(node: Node, edit: NodeEdit) -> Node:
    """The node with what changed."""
    changed: dict[str, Any] = {k: value for k in _WHOLE if (value := getattr(edit, k)) is not UNSET}
    if edit.labels:
        labels = {key: value for key, value in node.labels.items() if key not in edit.labels}
        changed["labels"] = labels | {key: value for key, value in edit.labels.items() if value is not None}
    return replace(node, **changed)

"""How nodes are to be shown where others schedule on them, too: which are out of use, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NodeMark:
    """A node that is not in use. ``state``: one word; ``by_hand``: a person keeps new work off it, else a fault does.

    ``leave``: what runs there of others has to go, too.
    """

    state: str
    text: str
    by_hand: bool = False
    leave: bool = False


class NodeMarks(Protocol):
    """An engine whose nodes others use, too."""

    def mark(self, marks: Mapping[str, NodeMark]) -> None:
        """These nodes are out of use, and no others are. Never waits."""
        ...

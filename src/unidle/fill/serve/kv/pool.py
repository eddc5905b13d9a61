"""Which blocks of the cache are free. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_tokens)


class BlockPool:
    """Blocks 0 to ``blocks`` - 1. A block has one owner, who gives it back once."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._taken = set[int]()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._taken)

    def take(self, count: int) -> list[int] | None:
        """So many blocks, or None where fewer are free; never a part of them."""
        if count > len(self._free):
            return None
        found = [self._free.pop() for _ in range(count)]
        self._taken.update(found)
        return found

    def give(self, blocks: Iterable[int]) -> None:
        """Make blocks free. Errors: ValueError for one that is not taken; none of them is freed then."""
        given = list(blocks)
        if len(set(given)) != len(given) or not self._taken.issuperset(given):
            raise ValueError(f"not taken, or given twice: {given}")
        self._taken.difference_update(given)
        self._free.extend(given)

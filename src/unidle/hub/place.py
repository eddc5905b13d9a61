"""Where a controller of hosts keeps what it needs for them, below the store's directory. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = "hub"
JOIN: Final = "join"
READER: Final = "reader"


def has_hosts(state: Path) -> bool:
    """Whether a controller of hosts was on the store with this directory."""
    return (state / FOLDER / READER).exists()

"""Files that no change may edit."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

SHIELDED_NAMES: Final = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py", "__main__.pth"})


def is_test(file: str) -> bool:
    """Whether a path is that of a test, by the names that runners look for."""
    path = PurePosixPath(file)
    folders = {part.lower() for part in path.parts[:-1]}
    return (
        bool(folders & {"tests", "test", "testing"})
        or path.name.startswith("test_")
        or path.name.endswith("_test.py")
    )

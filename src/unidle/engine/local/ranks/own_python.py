"""How this Python is started again. One that came into a pod with a loader of its own (``unidle.box.interpreter``) needs that."""

from __future__ import annotations

import os
import sys

LOADER = "ld.so"


def own_python() -> list[str]:
    """The words before the arguments of this Python; the first one is the path of a program."""
    root = os.path.dirname(os.path.dirname(sys.executable))
    return words_of(root) if os.path.exists(os.path.join(root, LOADER)) else [sys.executable]


def words_of(root: str) -> list[str]:
    """Those for a Python with a loader of its own, in the directory ``root``."""
    library, program = os.path.join(root, "lib"), os.path.join(root, "bin", "python3")
    return [os.path.join(root, LOADER), "--library-path", library, program]

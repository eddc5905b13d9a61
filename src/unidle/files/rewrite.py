"""Changes one part of a user's YAML file. The rest of the file, including comments, is unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from unidle.atomic import replaced
from unidle.errors import BadInput


def end_of(text: str, node: Any) -> int:
    """Where a node's last word ends: the mark of a block comes after the space and comments that follow it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return end_of(text, last[1] if isinstance(last, tuple) else last)


def spliced(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def replace_text(path: str, text: str, check: Callable[[str], object]) -> None:
    """The file with a new text, after ``check`` has read that from another path; its mode is kept.

    Errors: what ``check`` raises, and :class:`BadInput` where it cannot be written; then the file is as it was.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o644
        with replaced(target, mode, durable=True) as stream:
            stream.write(text.encode())
            stream.flush()
            check(stream.name)
    except OSError as error:
        raise BadInput(
            f"cannot be written: {error.strerror}", field="--write", value=path, remedy="name another place"
        ) from error

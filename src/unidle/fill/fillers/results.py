"""The file of a filler's results: a line of JSON for each piece of work that is complete, so that a later filler leaves it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unidle.fill.fillers.share import own_path


class Results:
    """``key``: the field that names the work. Errors: OSError where the file cannot be written."""

    def __init__(self, path: str, key: str) -> None:
        self._path = Path(own_path(path))
        with self._path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            file.truncate(len(whole))  # a line that was torn by the end of its writer is made again
        self.done = {json.loads(line)[key] for line in whole.splitlines()}

    def add(self, row: dict[str, Any]) -> None:
        """A piece of work is complete."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

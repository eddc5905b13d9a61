"""What a box does for the checkpoints of its job: looks before a restart, checksums of saves.

That takes processes of the whole of unidle: a box that is one file does none of it.
"""

from __future__ import annotations

import os

from unidle import wire
from unidle.engine.local.ranks import side_process

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

    from unidle.engine.local.ranks.saved_checkpoints import SavedCheckpoints

_ATTEND = "unidle.checkpoint.attend"


class Saves:
    """Of a ``prepare``: where the job saves, and what is wanted of the box. Errors: wire.Malformed."""

    def __init__(self, content: object) -> None:
        if not isinstance(content, dict):
            raise wire.Malformed("prepare: saves is no object")
        texts = [content.get(name, "") for name in ("path", "hold", "hold_dir")]
        if not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise wire.Malformed("prepare: saves has a text that is none")
        self.path, self.hold, self.hold_dir = texts
        if not os.path.isabs(self.path):
            raise wire.Malformed("prepare: the path of saves is not absolute")
        self.look, self.aside = content.get("look") is True, content.get("aside") is True


class JobSaves:
    """Of one job. Each attempt is looked at once, however often it is prepared."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._saved: SavedCheckpoints | None = None
        self._bad: dict[int, list[dict[str, Any]]] = {}  # what was found, by attempt
        self._untold: set[int] = set()  # attempts of which the hub does not know all

    def look(self, attempt: int, saves: Saves) -> None:
        """Read the newest checkpoint before an attempt, unless that was done."""
        if attempt in self._bad:
            return
        self._bad[attempt] = []
        if side_process.can_start(_ATTEND):
            self._of_saved().look(self._job, attempt, saves.path, aside=saves.aside)

    def looked(self, attempt: int) -> dict[str, Any] | None:
        """The state of a look, for the answer to ``prepare``; None where there was none."""
        bad = self._bad.get(attempt)
        if bad is None:
            return None
        return {"attempt": attempt, "over": not self._reads(attempt), "bad": bad}

    def saved(self, path: str) -> None:
        """A rank has written a checkpoint: take its checksums."""
        if side_process.can_start(_ATTEND):
            self._of_saved().saved(path)

    def advance(self) -> None:
        """Take in what the processes have to say."""
        if self._saved is None:
            return
        reading = [attempt for attempt in self._bad if self._reads(attempt)]
        for _, attempt, bad in self._saved.poll():
            self._bad.setdefault(attempt, []).append(bad.as_json())
            self._untold.add(attempt)
        self._untold.update(attempt for attempt in reading if not self._reads(attempt))

    def news(self) -> list[dict[str, Any]]:
        """Looks that have come further since the last call, as bodies of ``seen``."""
        attempts, self._untold = sorted(self._untold), set()
        found = [self.looked(attempt) for attempt in attempts]
        return [body for body in found if body is not None]

    @property
    def busy(self) -> bool:
        """Whether a start waits for a look."""
        return self._saved is not None and self._saved.busy

    def forget(self, attempt: int) -> None:
        self._bad.pop(attempt, None)
        self._untold.discard(attempt)

    def close(self) -> None:
        if self._saved is not None:
            self._saved.close()

    def _reads(self, attempt: int) -> bool:
        return self._saved is not None and self._saved.reads(self._job, attempt)

    def _of_saved(self) -> SavedCheckpoints:
        if self._saved is None:  # most jobs of most boxes have no use for it
            from unidle.engine.local.ranks.saved_checkpoints import SavedCheckpoints

            self._saved = SavedCheckpoints(lambda: side_process.environment(os.environ))
        return self._saved

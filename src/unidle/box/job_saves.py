"""What a box does for the checkpoints of its job: looks before a restart, checksums of saves, the holder of copies in memory.

That takes processes of the whole of unidle: a box that is one file does none of it.
"""

from __future__ import annotations

import os
import signal

from unidle import wire
from unidle.boot import boottime_ns
from unidle.engine.local.ranks import rundir, side_process

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

    from unidle.engine.local.ranks.saved_checkpoints import SavedCheckpoints
    from unidle.engine.local.ranks.side_process import SideProcess

_ATTEND = "unidle.checkpoint.attend"
_HOLDER = "unidle.checkpoint.holder.__main__"
_FILE = "saves.json"
_AGAIN_NS, _AGAIN_MOST_NS = (
    200_000_000,
    60_000_000_000,
)  # after the holder was killed; doubled with each further time


class PreparedSaves:
    """Of a ``prepare``: where the job saves, and what the box is to do for that. Errors: wire.Malformed."""

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


class JobHolder:
    """The holder of the job's copies in memory on this host. It outlives the box, and ends with the job.

    One that an earlier box started is left to itself: another one that is started finds it running, and ends.
    """

    def __init__(self, node: str, directory: str) -> None:
        self._node, self._path = node, f"{directory}/{_FILE}"
        self._errors = f"{directory}/holder.err"
        self._wish: dict[str, str] = {}
        self._process: SideProcess | None = None
        self._ending: SideProcess | None = None
        self._tries, self._again_ns = 0, 0

    def ensure(self, saves: PreparedSaves) -> None:
        """Have it run, for the next attempt."""
        self._wish = {"path": saves.path, "hold": saves.hold, "hold_dir": saves.hold_dir}
        if rundir.read_json(self._path) != self._wish:
            rundir.write_json(self._path, dict(self._wish))
        self._tries, self._ending = 0, None
        if self._process is None or not self._process.alive:
            self._start()

    def advance(self) -> None:
        """Start it again if it was killed; one that has ended by itself has nothing to do."""
        if self._process is not None and not self._process.alive:
            again = self._process.code != 0
            self._process = None
            self._again_ns = (
                boottime_ns() + min(_AGAIN_NS << min(self._tries, 20), _AGAIN_MOST_NS) if again else 0
            )
        if self._again_ns and boottime_ns() >= self._again_ns and self._ending is None:
            self._start()

    def end(self) -> None:
        """The job is over: it writes what is on its way to storage, and goes with its copies."""
        wish = self._wish or rundir.read_json(self._path) or {}
        self._wish = {name: text for name, text in wish.items() if isinstance(text, str)}
        if not self._wish.get("path") or self._ending is not None:
            return
        if self._process is not None and self._process.alive:  # which may only just begin
            os.kill(self._process.pid, signal.SIGUSR1)
        self._ending = self._run("--end")

    @property
    def is_ending(self) -> bool:
        """Whether it has still to write what was on its way."""
        return self._ending is not None and self._ending.alive

    def _start(self) -> None:
        self._tries, self._again_ns = self._tries + 1, 0
        self._process = self._run("--foreground", "--host", self._wish["hold"])

    def _run(self, *words: str) -> SideProcess | None:
        if not side_process.can_start(_HOLDER):
            return None
        env = side_process.environment(os.environ)
        if self._wish.get("hold_dir"):
            env["UNIDLE_HOLD_DIR"] = self._wish["hold_dir"]
        command = [
            "-m",
            "unidle.checkpoint.holder",
            "--storage",
            self._wish["path"],
            "--node",
            self._node,
            *words,
        ]
        try:
            return side_process.start(command, env, errors=self._errors)
        except OSError:
            return None  # no process can be had: ranks start one of their own, or say why they cannot


class JobSaves:
    """Of one job. Each attempt has one look, however often it is prepared."""

    def __init__(self, job: str, node: str, directory: str) -> None:
        self._job = job
        self.holder = JobHolder(node, directory)
        self._saved: SavedCheckpoints | None = None
        self._bad: dict[int, list[dict[str, Any]]] = {}  # what was found, by attempt
        self._untold: set[int] = set()  # attempts of which the hub does not know all

    def prepare(self, attempt: int, saves: PreparedSaves) -> None:
        """Read the newest checkpoint before an attempt, unless that was done, and have the holder of copies run. Errors: OSError."""
        if saves.hold:
            self.holder.ensure(saves)
        if not saves.look or attempt in self._bad:
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
        self.holder.advance()
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

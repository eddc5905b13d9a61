"""The demo: train examples/gpt, kill one rank halfway, and let unidle finish and account for the job.

    make demo
    make demo ARGS="--kill-rank 1 --kill-at 100"

Each run has a directory of its own under .cache/demo, with a copy of the example, the store and the
report. Only the kill is done here; the rest is `unidle run`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unidle.view.jobs import JobView
    from unidle.view.state import View

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo.py", description=__doc__)
    parser.add_argument("--kill-rank", type=int, default=2, metavar="K", help="which rank (default 2)")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="at which step (default: halfway)")
    arguments = parser.parse_args()

    place = place_with_gpt("")
    # some steps after the checkpoint at half of them, so that there is work to lose
    at = arguments.kill_at or steps_of(place / "gpt" / "job.yaml") // 2 + 15
    shown = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
    tell(f"4 ranks train a small GPT; at step {at} rank {arguments.kill_rank} is killed on purpose")
    code = run(place / "gpt" / "job.yaml", place / "demo.db", arguments.kill_rank, at)
    tell(f"look further: .venv/bin/unidle explain gpt --store {shown / 'demo.db'}")
    sys.exit(code)


def steps_of(job_file: Path) -> int:
    """How many steps the job's command asks for."""
    import yaml

    command = yaml.safe_load(job_file.read_text())["command"]
    return int(command[command.index("--steps") + 1])


def run(job_file: Path, store: Path, rank: int, at: int) -> int:
    """``unidle run`` with a killer next to it; its exit code."""
    # The job says `python`: the one next to unidle, which has PyTorch.
    bin_dir = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"}
    progress = "live" if sys.stderr.isatty() else "plain"
    # as many CPU devices as the job takes: idle ones would fill the picture (GPUs are used first)
    fleet = ["--cpu-devices", "4", "--progress", progress]
    # 400 lines of losses would hide what unidle shows
    command = [str(bin_dir / "unidle"), "run", str(job_file), "--logs", "none", "--store", str(store), *fleet]
    over = threading.Event()
    killer = threading.Thread(
        target=kill_at_step, args=(store.with_name(store.name + ".d") / "runs", rank, at, over)
    )
    # A terminal's Ctrl-C reaches unidle too, which ends the job; this process waits for that.
    signal.signal(signal.SIGINT, lambda *_: None)
    with subprocess.Popen(command, env=env) as child:
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        killer.start()
        code = child.wait()
    over.set()
    killer.join()
    return code if code >= 0 else 128 - code


def kill_at_step(runs: Path, rank: int, at: int, over: threading.Event) -> None:
    """Kill ``rank`` once its gang has done step ``at`` and has a checkpoint to resume from."""
    while not over.wait(0.05):
        journals = {
            int(path.parent.name.removeprefix("rank")): list(marks(path))
            for path in runs.glob("*/1/rank*/journal.jsonl")
        }
        every = [mark for found in journals.values() for mark in found]
        step = max((mark["n"] for mark in every if mark["k"] == "step"), default=0)
        spawned = next((mark for mark in journals.get(rank, ()) if mark["k"] == "spawn"), None)
        if spawned and step >= at and any(mark["k"] == "saved" for mark in every):
            tell(f"kill -9 {spawned['pid']}: rank {rank}, at step {step}")
            os.kill(spawned["pid"], signal.SIGKILL)
            return


def marks(journal: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a journal."""
    for line in journal.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def place_with_gpt(kind: str) -> Path:
    """A directory of this run, with a copy of the example."""
    place = ROOT / ".cache" / "demo" / time.strftime(f"{kind}%Y%m%d-%H%M%S")
    shutil.copytree(
        ROOT / "examples" / "gpt", place / "gpt", ignore=shutil.ignore_patterns("checkpoints*", "__pycache__")
    )
    return place


class FollowedDemo:
    """A demo that follows the log of a controller at ``store``; all its waits together end after ``limit_s``."""

    def __init__(self, place: Path, store: Path, limit_s: float) -> None:
        self.place, self.store = place, store
        self.job = ""
        self.begun_s = time.monotonic()
        self._end_s = self.begun_s + limit_s

    def until(self, what: str, holds: Callable[[View], bool]) -> View:
        """The view of the log once ``holds`` does."""
        while time.monotonic() < self._end_s:
            if self.store.exists() and holds(view := self.view()):
                return view
            time.sleep(0.2)
        sys.exit(f"demo: it took too long until {what}; see {self.place}")

    def view(self) -> View:
        """What the log has now."""
        from unidle.api.stores import read_store, read_view

        store = read_store(str(self.store))
        try:
            return read_view(store)
        finally:
            store.close()

    def trained_to(self, attempt: int, step: int) -> JobView:
        """The job once an attempt has done a step."""

        def holds(view: View) -> bool:
            job = view.jobs.get(self.job)
            if job is not None and job.terminal:
                sys.exit(
                    f"demo: the job is {job.state} before attempt {attempt} was at step {step}; see {self.place}"
                )
            if job is None or len(job.attempts) < attempt:
                return False
            return (job.attempts[attempt - 1].last_step() or 0) >= step

        return self.until(f"attempt {attempt} is at step {step}", holds).jobs[self.job]

    def lost(self, node: str) -> None:
        """Wait until attempt 2 has ended as ``node`` is lost, and show why."""
        view = self.until(f"{node} counts as lost", lambda view: not view.jobs[self.job].attempts[1].live)
        why = view.jobs[self.job].attempts[1].why
        tell(f"attempt 2 ended: {why.text if why is not None else 'for no known reason'}")

    def end(self, code: int) -> int:
        """0 where the job succeeded with its third attempt and ``code`` is 0."""
        job = self.view().jobs[self.job]
        if job.state == "succeeded" and len(job.attempts) == 3:
            return code
        tell(f"this went wrong: the job is {job.state} after {len(job.attempts)} attempts, 3 are expected")
        return code or 1

    def tell_end(self) -> None:
        tell(
            f"{time.monotonic() - self.begun_s:.0f} s; look further: .venv/bin/unidle explain {self.job} --store {self.store}"
        )


def tell(text: str) -> None:
    start = "\r\x1b[K" if sys.stderr.isatty() else ""  # over unidle's live line
    print(f"{start}demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""``unidle profile --top``: the first screen again and again, of the last seconds."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections import deque
from types import FrameType
from typing import Final

from unidle.cli.profile_live import safe
from unidle.cli.profile_source import add_owners, line_of_source, owners_of
from unidle.errors import BadInput
from unidle.scope.merge import merge
from unidle.scope.model import Profile
from unidle.scope.rules import RuleSet
from unidle.scope.screen import screen
from unidle.scope.summary import report_of
from unidle.scope.targets import OtherPrograms, ProfileTarget
from unidle.scope.tiers import ProfilerWatch

_EVERY_S: Final = 2.0
_SLICE_S: Final = 0.2  # so that Ctrl-C is answered at once
_WIDEST: Final = 120


def check_terminal() -> None:
    """Raises :class:`BadInput` where nothing can be drawn again and again."""
    if not sys.stdout.isatty():
        raise BadInput("needs a terminal", field="--top", remedy="leave it out: the same is printed once")


def top(watched: ProfilerWatch, target: ProfileTarget, rules: RuleSet, seconds: float) -> Profile | None:
    """Draw what was seen in the last ``seconds``, every two seconds, until all has ended or Ctrl-C.

    Returns what was drawn last, to be left on the terminal; None where nothing was seen.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    owners = owners_of(target.pids)
    windows: deque[Profile] = deque(maxlen=max(round(seconds / _EVERY_S), 1))
    stopped = False

    def stop(_: int, __: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            lives = 1
            while lives and not stopped:
                others = OtherPrograms(target)
                end = time.monotonic() + _EVERY_S
                while (left := end - time.monotonic()) > 0 and not stopped and lives:
                    lives = watched.run(min(left, _SLICE_S))
                windows.append(target.named(watched.take()))
                seen = merge(windows)
                add_owners(owners, (p.pid for p in seen.processes))
                report = report_of(seen, rules, others.machine([p.pid for p in seen.processes]))
                columns, rows = shutil.get_terminal_size()
                room = {"width": min(columns - 1, _WIDEST), "rows": rows - 2}
                lines = screen(report, colour=True, source=line_of_source(seen, owners), **room)
                shown = [*map(safe, lines[: rows - 2]), "", "Ctrl-C ends it"][:rows]
                live.update(Text.from_ansi("\n".join(shown), no_wrap=True), refresh=True)
    finally:
        signal.signal(signal.SIGINT, before)
    last = merge(windows) if windows else None
    return last if last is not None and last.samples else None

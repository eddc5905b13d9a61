"""Checks of this node as processes of their own: ``unidle check --json``, for the preflight of a controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from unidle.boot import boottime_ns

TIERS: Final[dict[str, float]] = {"quick": 60.0, "standard": 600.0, "burn-in": 7200.0}
"""How long a check of each depth may run, in seconds."""
_MOST_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Exit code (None: it was killed, ``late``) and what the check printed."""

    code: int | None
    late: bool
    text: str


def check_command(node: str, tier: str, log_age_s: int | None, used: Sequence[str]) -> list[str]:
    """The command of a check that is ordered now. ``log_age_s``: for how many seconds before this moment the kernel log counts;
    ``used``: directories whose faults in it count.
    """
    words = [sys.executable, "-P", "-m", "unidle", "check", "--json", "--tier", tier, "--node", node]
    if log_age_s is not None:  # as a moment: the check may read the log much later
        words += ["--log-since", f"{max(boottime_ns() / 1e9 - log_age_s, 0):.3f}"]
    return words + [f"--used={path}" for path in used]


class RunningCheck:
    """One check. It is killed with all its processes when it runs for too long."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._until_s = time.monotonic() + limit_s
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - read at its end
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )  # fmt: skip

    def outcome(self) -> CheckOutcome | None:
        """How it ended; None while it runs."""
        code = self._process.poll()
        if code is None and time.monotonic() < self._until_s:
            return None
        late = code is None
        self._kill()
        self._output.seek(0)
        text = self._output.read(_MOST_BYTES).decode(errors="replace")
        self._output.close()
        return CheckOutcome(None if late else code, late, text)

    def close(self) -> None:
        """End it, whatever it does."""
        self._kill()
        self._output.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

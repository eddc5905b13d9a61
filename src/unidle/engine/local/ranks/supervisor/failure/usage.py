"""Refused command lines and configurations: argparse, click, typer, absl, fire, Hydra."""

from __future__ import annotations

import re

from .output_error import OutputError

_BEFORE = 60  # lines of usage or help before the error
_HYDRA_END = "Set the environment variable HYDRA_FULL_ERROR=1"
_CONFIG = re.compile(
    r"(?:[A-Za-z_][\w.]*(?:Error|Exception)\b|Could not |In '|Key '|Unable to |Missing mandatory |Error in call to |You must |Ambiguous ).*"
).match


def argparse(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    return OutputError(k, lines[k], kind="code") if _usage_before(lines, k) else None


def click(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    """``Error: ...`` below the usage; fire has its usage below."""
    if not lines[k].startswith(("Error: ", "ERROR: ")):
        return None
    fires = lines[k].startswith("ERROR: ") and any(
        line.startswith("Usage: ") for line in lines[k + 1 : k + 3]
    )
    return OutputError(k, lines[k], kind="code") if fires or _usage_before(lines, k) else None


def typer(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    """An error in a box below the usage."""
    if not lines[k].startswith("╭─ Error ─") or k + 1 >= len(lines) or not _usage_before(lines, k):
        return None
    return OutputError(k + 1, lines[k + 1].strip(" │"), kind="code")


def absl(lines: list[str], k: int, _workdir: str) -> OutputError:
    said = lines[k + 1].strip() if k + 1 < len(lines) else ""
    return OutputError(k, f"{lines[k].partition('FATAL ')[2] or lines[k]} {said}", kind="code")


def hydra(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    """What Hydra shows without a traceback: the first line that names the mistake."""
    said: OutputError | None = None
    for at in range(k - 1, max(k - _BEFORE, -1), -1):
        if lines[at].startswith(("Traceback (most", _HYDRA_END)):
            return None
        if _CONFIG(lines[at]) is not None:
            said = OutputError(at, lines[at], kind="code")
        if lines[at].startswith("Error executing job"):
            break
    return said


def _usage_before(lines: list[str], k: int) -> bool:
    return any(line.lstrip().startswith(("usage: ", "Usage: ")) for line in lines[max(k - _BEFORE, 0) : k])

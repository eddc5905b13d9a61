"""Which attempt may finish checkpoints in a directory: the newest of its job that has begun there, and no older one.

A process that was stopped, or whose host was cut off, may wake up after the next attempt of its job has begun elsewhere. It
may hold any lock, so this needs none:

- An attempt begins (:func:`begin`): it makes a file with its number, removes those of all others, and then gives every
  unfinished checkpoint another name (:func:`unidle.checkpoint.holder.storage.sweep`).
- A save is finished: all is written below an unfinished name, then the files are read (:func:`refusal`), then it is renamed.

If that comes after the new file, the save is refused. If it comes before, its directory was there before the sweep, which
takes it away, so that the rename fails; or the rename was first, and the new attempt finds a whole checkpoint as it begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unidle import private
from unidle.checkpoint.holder import hold_paths

FOLDER: Final = "attempts"


class Superseded(Exception):
    """A newer attempt, or another job, has begun in the directory; the text names it."""


@dataclass(frozen=True, slots=True)
class SavingAttempt:
    """Attempt ``number`` of a job. ``run`` names the job among all that may save in one directory."""

    run: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.run}.{self.number}"

    def is_before(self, other: SavingAttempt) -> bool:
        """Whether the other one is a newer attempt of the same job."""
        return self.run == other.run and self.number < other.number


def attempt_of(env: Mapping[str, str], session: str) -> SavingAttempt:
    """The attempt that a rank belongs to; without an engine of unidle it is one of its own."""
    run, number = env.get("UNIDLE_RUN_ID", ""), env.get("UNIDLE_ATTEMPT", "")
    if not run.endswith(f"-{number}") or not (number.isascii() and number.isdigit() and len(number) < 10):
        return SavingAttempt(session, 0)
    return SavingAttempt(hashlib.sha256(run[: -len(number) - 1].encode()).hexdigest()[:16], int(number))


def attempt_in(message: Mapping[str, Any]) -> SavingAttempt:
    """The attempt in the greeting of a rank. Raises ValueError, KeyError, TypeError."""
    told = message.get("attempt")
    found = (
        SavingAttempt(str(message["session"]), 0)
        if told is None
        else SavingAttempt(str(told["run"]), int(told["number"]))
    )
    if not found.run.isalnum() or found.number < 0:
        raise ValueError("it is no attempt")
    return found


def begin(storage: str, attempt: SavingAttempt) -> str:
    """From here on, only this attempt finishes checkpoints; empty, or why it must not begin. Raises OSError."""
    with hold_paths.inner(storage, FOLDER, create=True) as folder:
        if why := _newer(_known(folder), attempt):
            return why
        fd = private.open_file(attempt.name, folder, os.O_WRONLY | os.O_CREAT)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.fsync(folder)
        known = _known(folder)
        if why := _newer(known, attempt):
            _remove(folder, attempt)
            return why
        for other in known:
            if other != attempt:
                _remove(folder, other)
        os.fsync(folder)
    return ""


def refusal(storage: str, attempt: SavingAttempt) -> str:
    """Why a save of this attempt must not be finished; empty where it may. Raises OSError.

    A directory that was removed, and made again by its job, has no attempt: no other one has begun there.
    """
    try:
        with hold_paths.inner(storage, FOLDER) as folder:
            known = _known(folder)
    except FileNotFoundError:
        return ""
    if why := _newer(known, attempt):
        return why
    return "another job has begun in this directory" if known and attempt not in known else ""


def is_superseding(storage: str, attempt: SavingAttempt) -> bool:
    """Whether it was an earlier attempt of the same job that began here last. Raises OSError."""
    try:
        with hold_paths.inner(storage, FOLDER) as folder:
            known = _known(folder)
    except FileNotFoundError:
        return False
    return bool(known) and all(other.is_before(attempt) for other in known)


def _newer(known: list[SavingAttempt], attempt: SavingAttempt) -> str:
    newest = max((other.number for other in known if other.run == attempt.run), default=-1)
    return (
        f"attempt {newest} of this job has begun: attempt {attempt.number} saves no more"
        if newest > attempt.number
        else ""
    )


def _known(folder: int) -> list[SavingAttempt]:
    found = []
    for name in os.listdir(folder):
        run, _, number = name.partition(".")
        if run.isalnum() and number.isascii() and number.isdigit():
            found.append(SavingAttempt(run, int(number)))
    return found


def _remove(folder: int, attempt: SavingAttempt) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(attempt.name, dir_fd=folder)

"""The directory of a store's jobs: logs, journals, archives and reports, next to the store's file."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from unidle import private
from unidle.errors import StoreError
from unidle.store.protocol import Store


def state_dir(store: Store, data_dir: Path) -> Path:
    """Where logs, journals and reports of a store live: next to its file, else under ``data_dir``."""
    if store.url.startswith("sqlite:///"):
        return Path(store.url.removeprefix("sqlite:///") + ".d")
    return data_dir / (hashlib.sha256(store.url.encode()).hexdigest()[:16] + ".d")


def run_root(store: Store, data_dir: Path) -> Path:
    """Where the attempts' logs and journals are."""
    return state_dir(store, data_dir) / "runs"


def make_run_root(store: Store, data_dir: Path) -> Path:
    """:func:`run_root`, made with mode 0700. What is in it is run, so one that another user prepared is refused.

    One that only the user's own group may write (it was made under umask 002) is closed to it, with a line on stderr.

    Errors: :class:`unidle.errors.StoreError` with the owner of what is there.
    """
    state = state_dir(store, data_dir)
    try:
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in (state, state / "runs"):
            private.make_directory(directory, mended=say_line)
    except private.NotPrivate as error:
        raise StoreError(error.problem, field=error.path, remedy=error.remedy) from error
    except OSError as error:
        raise StoreError(
            f"the directory for the ranks' logs cannot be made: {error.strerror}", field=str(state / "runs"),
            remedy="free space on its disk, or check its permissions",
        ) from error  # fmt: skip
    return state / "runs"


def say_line(line: str) -> None:
    """One line for the user on stderr."""
    sys.stderr.write(f"unidle: {line}\n")


def refuse_foreign(store: Store) -> None:
    """The owner of a store decides what runs: only its owner runs the jobs, or anyone where that is root.

    Errors: :class:`unidle.errors.StoreError` with the owner.
    """
    if not store.url.startswith("sqlite:///"):
        return
    try:
        private.check_owned_file(store.url.removeprefix("sqlite:///"))
    except private.NotPrivate as error:
        raise StoreError(error.problem, field=error.path, remedy=error.remedy) from error

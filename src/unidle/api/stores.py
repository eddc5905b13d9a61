"""The address of a store, and reading it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from unidle.errors import BadInput, StoreError

if TYPE_CHECKING:
    from unidle.store.protocol import Store
    from unidle.view.state import View


def store_address(given: str | None) -> str:
    """The address of the store for a command."""
    return given or str(data_dir() / "store.db")


def data_dir() -> Path:
    """The user's data directory for unidle."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "unidle"


def mode_of(given: str | int, field: str = "--mode") -> int:
    """The permissions of a new file, from a number or its octal digits.

    Errors: :class:`BadInput` unless its owner can read and write the file, and no one can execute it.
    """
    try:
        mode = int(given, 8) if isinstance(given, str) else given
    except ValueError:
        mode = -1
    if not isinstance(mode, int) or mode & 0o600 != 0o600 or mode & ~0o666:
        shown = f"{given:04o}" if isinstance(given, int) and not isinstance(given, bool) else given
        raise BadInput(
            "is not the mode of a file", field=field, value=shown, remedy="give one from 0600 to 0666"
        )
    return mode


def make_parent(address: str) -> None:
    """The directory of a store that is a file."""
    if "://" in address:
        return
    parent = Path(address).absolute().parent
    try:
        parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"its directory cannot be created: {error.strerror}", field=address, remedy="use another path with --store"
        ) from error  # fmt: skip


def read_store(given: str | None, *, requests: bool = False) -> Store:
    """Open a store to read it, even without write permission. ``requests``: use its inbox."""
    from unidle.store.open import open_store

    return open_store(store_address(given), create=False, read_only=not requests)


def read_view(store: Store) -> View:
    """The view of the store, with submitted jobs that no writer has accepted yet."""
    from unidle.view.snapshot import load_view

    requests = store.requests()  # before the log: what a writer takes over in between is in one of them
    view = load_view(store)
    if requests:
        from unidle.control.inbox import add_submitted

        add_submitted(view, requests)
    return view


def address_of(store: str | os.PathLike[str] | None) -> str:
    """The address of the store for a Python caller: the given one, else UNIDLE_STORE, else the user's own store.

    A path is made absolute, so that a later change of the working directory does not matter.
    """
    address = store_address(os.fspath(store) if store is not None else os.environ.get("UNIDLE_STORE"))
    return address if "://" in address else str(Path(address).absolute())


def without_password(address: str) -> str:
    """The address as it may be shown."""
    scheme, separator, rest = address.partition("://")
    if not separator or "@" not in rest:
        return address
    user, _, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}@{host}"

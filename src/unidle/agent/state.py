"""What an agent keeps on its host: its own token, and the directories of boxes and orders. One agent at a time uses it."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from unidle import private
from unidle.atomic import replaced
from unidle.errors import BadInput, CannotRun

_FILE: Final = "agent.json"
_LOCK: Final = "agent.lock"
_MOST_BYTES: Final = 256 * 1024
_REMEDY: Final = "name another directory with --state"


@dataclass(frozen=True, slots=True)
class Membership:
    """As what this host joined: its node, its own token, the hub and the certificate of the hub's authority."""

    node: str
    token: str
    hub: str
    authority: str


class AgentState:
    """A directory of this user alone (mode 0700), locked until :meth:`close`.

    Errors: :class:`BadInput` where it is another user's, :class:`CannotRun` while another agent uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = private.open_folder(str(self.path), create=True, private=True, remedy=_REMEDY)
        except private.NotPrivate as error:
            raise BadInput(error.problem, field="--state", value=error.path, remedy=error.remedy) from None
        except OSError as error:
            raise BadInput(
                f"cannot be used: {error.strerror}", field="--state", value=str(path), remedy=_REMEDY
            ) from None
        self._lock = private.open_file(_LOCK, self._fd, os.O_RDWR | os.O_CREAT, str(self.path))
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise CannotRun(
                "another agent of this host uses it", field="--state", value=str(path), remedy="stop that one, or " + _REMEDY
            ) from None  # fmt: skip

    @property
    def boxes(self) -> Path:
        """Where boxes have a directory each."""
        return self.path / "boxes"

    @property
    def orders(self) -> Path:
        """Where checks and hooks have a directory each."""
        return self.path / "orders"

    def membership(self) -> Membership | None:
        """As what this host joined; None if it never did, or the file is damaged."""
        with suppress(OSError, ValueError, TypeError):
            return Membership(**json.loads(private.read(_FILE, self._fd, _MOST_BYTES)))
        return None

    def keep(self, membership: Membership) -> None:
        """Keep it durably, with mode 0600."""
        if membership == self.membership():
            return
        with replaced(_FILE, at=self._fd, durable=True) as file:
            file.write(json.dumps(asdict(membership)).encode())
        os.fsync(self._fd)

    def close(self) -> None:
        """Let another agent use it."""
        os.close(self._lock)
        os.close(self._fd)

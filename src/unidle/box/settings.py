"""What a box is given: ``DIR/box.json``, which holds its token, or the environment variable ``UNIDLE_BOX``, which names a file of it.

The second is for containers: what is written in a pod is no secret, and the token that a cluster puts there changes.
"""

from __future__ import annotations

import json
import os
import stat

from unidle.engine.local.ranks.rundir import path_part

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

FILE = "box.json"
VARIABLE = "UNIDLE_BOX"
_MOST_BYTES = 1024 * 1024
_MOST_TOKEN_BYTES = 16 * 1024
_TEXTS = ("node", "job")


class BadSettings(Exception):
    """The settings cannot be used; the text has the field and the remedy."""


class BoxSettings:
    """Of one box: ``hubs`` are tried in turn; ``authority`` is the PEM text that their certificates are checked by;
    empty: the authorities of the system are.

    ``name``, where given, is the name that the hub's certificate has; ``runs`` is the run root of its ranks.
    ``source`` is what the settings are from, for errors.
    """

    def __init__(self, directory: str, content: dict[str, Any], source: str = FILE) -> None:
        self._source = source
        token = "token_file" if "token_file" in content else "token"
        for field in (*_TEXTS, token):
            if not isinstance(content.get(field), str) or not content[field]:
                raise BadSettings(f"{source}: {field}: text is needed (got {content.get(field)!r:.60})")
        authority = content.get("authority")
        if not isinstance(authority, str):
            raise BadSettings(
                f"{source}: authority: PEM text is needed, or empty text for those of the system (got {authority!r:.60})"
            )
        self.directory = directory
        self.authority: str = authority
        self._token: str = content[token]
        self._in_file = "token_file" in content
        self.node: str = content["node"]
        self.name: str = str(content.get("name", ""))
        self.hubs = _hubs(content.get("hub"), source)
        try:
            self.job = path_part(content["job"])
        except ValueError as error:
            raise BadSettings(f"{source}: job: {error}") from None
        runs = content.get("runs") or os.path.join(directory, "runs")
        if not isinstance(runs, str):
            raise BadSettings(f"{source}: runs: a directory is needed (got {runs!r:.60})")
        self.runs = os.path.abspath(os.path.join(directory, runs))

    def token(self) -> str:
        """As it is now. Errors: OSError for a file that cannot be read."""
        if not self._in_file:
            return self._token
        with open(self._token, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_TOKEN_BYTES).strip()

    @property
    def job_directory(self) -> str:
        return os.path.join(self.runs, self.job)

    def renewed(self) -> BoxSettings | None:
        """As the file has them now, with the checks of the start: the hub may be at another address, or give another token.

        None where they are as before, cannot be used, are of another box, or are from the environment, which does not change.
        """
        if self._source == VARIABLE:
            return None
        try:
            found = _of_file(self.directory)
        except (BadSettings, OSError):
            return None
        mine = (found.node, found.job, found.runs) == (self.node, self.job, self.runs)
        return found if mine and found.reach != self.reach else None

    @property
    def reach(self) -> tuple[Any, ...]:
        """All that decides how the hub is reached."""
        return self.hubs, self.name, self.authority, self._token, self._in_file


def read(directory: str) -> BoxSettings:
    """The settings of a directory, or of the environment. Errors: BadSettings, also for a link and for a file that others own or may read."""
    directory = os.path.abspath(directory)
    given = os.environ.pop(VARIABLE, None)  # the ranks have no use for it
    if given is not None:
        return BoxSettings(directory, _object(given, VARIABLE), VARIABLE)
    return _of_file(directory)


def _of_file(directory: str) -> BoxSettings:
    path = os.path.join(directory, FILE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadSettings(f"{path} cannot be opened: {error.strerror}; a link is not followed") from None
    with open(fd, encoding="utf-8") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
            raise BadSettings(f"{path} is not a file of this user; make it again as this user")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise BadSettings(f"{path} can be read by others, and holds a token; run chmod 600 {path}")
        try:
            text = file.read(_MOST_BYTES)
        except UnicodeDecodeError as error:
            raise BadSettings(f"{path} is no UTF-8: {error}") from None
        return BoxSettings(directory, _object(text, path), path)


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSettings(f"{source} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadSettings(f"{source} is no JSON object")
    return content


def _hubs(given: object, source: str) -> list[tuple[str, int]]:
    """Addresses, from ``[["host", port], ...]`` or ``"host:port"``."""
    if isinstance(given, str):
        host, _, port = given.rpartition(":")
        given = [[host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0]]
    found = []
    for entry in given if isinstance(given, list) else ():
        if not (isinstance(entry, list) and len(entry) == 2):
            break
        host, port = entry
        if not (isinstance(host, str) and host and type(port) is int and 0 < port < 65536):
            break
        found.append((host, port))
    else:
        if found:
            return found
    raise BadSettings(f'{source}: hub: [["host", port], ...] is needed (got {given!r:.60})')

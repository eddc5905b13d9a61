"""The file with which a host joins: the fleet's join token and the certificate of its hub's authority."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from unidle import private
from unidle.errors import BadInput
from unidle.login import login_name

_MOST_BYTES: Final = 256 * 1024
_FIELD: Final = "--token-file"


@dataclass(frozen=True, slots=True)
class JoinFile:
    """``authority``: certificates in PEM; empty where the site's own authorities are to be used.

    ``token_file``: where the token is read again for each connection, as a kubelet renews it. ``authority_file``: where
    the authority is from, in a pod.
    """

    token: str
    authority: str
    token_file: str = ""
    authority_file: str = ""

    @property
    def is_of_another_hub(self) -> bool:
        """Whether the file of the authority has another one by now."""
        if not self.authority_file:
            return False
        try:
            return _text(self.authority_file) != self.authority.strip()
        except OSError:
            return False

    def token_now(self) -> str:
        """The token as it is now; the one that was read first, where the file cannot be read."""
        if self.token_file:
            with suppress(OSError):
                return _text(self.token_file)
        return self.token


def read_join_file(path: str) -> JoinFile:
    """The content of a join file, which ``unidle up --listen`` writes: ``{"token": ..., "authority": ...}``.

    Errors: :class:`BadInput` where it is missing, is not such a file, belongs to another user (but root), or
    can be read by others.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _bad(
            path, f"cannot be read: {error.strerror}", "copy the file `join` of the controller's host"
        ) from None
    try:
        _check(path, os.fstat(fd))
        with open(fd, "rb", closefd=False) as file:
            data = file.read(_MOST_BYTES + 1)
    finally:
        os.close(fd)
    try:
        found = json.loads(data)
        token, authority = found["token"], found.get("authority", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        token = authority = None
    if not isinstance(token, str) or not token or not isinstance(authority, str):
        raise _bad(
            path,
            "is not a join file",
            "copy the file that `unidle up --listen` names; a token alone is not enough",
        )
    return JoinFile(token, authority)


def read_pod_join(token_file: str, authority_file: str) -> JoinFile:
    """The token that the kubelet keeps in a pod, and the certificate of the hub's authority, if it has one. Errors: :class:`BadInput`."""
    found = []
    for field, path in ((_FIELD, token_file), ("--authority", authority_file)):
        try:
            found.append(_text(path))
        except OSError as error:
            raise BadInput(
                f"cannot be read: {error.strerror}", field=field, value=path, remedy="see deploy/kubernetes/agent.yaml"
            ) from None  # fmt: skip
    return JoinFile(found[0], found[1] and found[1] + "\n", token_file, authority_file)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_BYTES).strip()


def _check(path: str, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise _bad(path, "is not a regular file", "name the file `join` of the controller's host")
    if not private.trusted(state.st_uid, root=True):
        raise _bad(
            path, f"belongs to {login_name(state.st_uid)}, so {login_name(state.st_uid)} decides which fleet this host joins",
            f"copy it to a file of {login_name(os.geteuid())}",
        )  # fmt: skip
    others = stat.S_IRWXO if state.st_uid == 0 != os.geteuid() else stat.S_IRWXG | stat.S_IRWXO
    if state.st_mode & others:
        raise _bad(
            path,
            f"can be read or changed by other users (mode {stat.S_IMODE(state.st_mode):04o})",
            f"`chmod 600 {path}`",
        )


def _bad(path: str, problem: str, remedy: str) -> BadInput:
    return BadInput(problem, field=_FIELD, value=path, remedy=remedy)

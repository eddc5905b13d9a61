"""Names of the users of this machine, as the kernel and the user database know them: no variable can change them."""

from __future__ import annotations

import os


def login_name(uid: int | None = None) -> str:
    """The name of a user, of this process's where none is given; the number of one without a name."""
    import pwd

    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

"""``python -m unidle.api.rank_profile``: profiles ranks of this machine for a command on another one.

The order is one line of JSON on standard input. The profile goes to the file that the order names, compressed; an
error goes to standard output as JSON. The end of standard input ends the look early, and keeps what was seen.
"""

from __future__ import annotations

import gzip
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import msgspec

from unidle.errors import UnidleError

_LEVEL = 3


class RankProfileRequest(msgspec.Struct, frozen=True):
    """Which ranks, for how long, and ``how``: what :func:`unidle.scope.tiers.watch` takes. ``out``: a file to make."""

    root: str
    job: str
    attempt: int
    ranks: tuple[int, ...]
    seconds: float
    how: dict[str, Any]
    out: str
    children: bool = True


def main() -> int:
    """0: the file is there; else the code of the error."""
    from unidle.api.profiling import look
    from unidle.scope.export.encode import json_bytes
    from unidle.scope.targets import of_ranks

    with open(0, "rb", buffering=0, closefd=False) as orders:  # takes one line, and nothing of what follows
        wish = msgspec.json.decode(orders.readline(), type=RankProfileRequest)
    try:
        target = of_ranks(Path(wish.root), wish.job, wish.attempt, wish.ranks, children=wish.children)
        seen, _ = look(target, wish.seconds, lambda: not select.select([0], [], [], 0)[0], **wish.how)
    except UnidleError as error:
        sys.stdout.write(json.dumps({"problem": error.problem, "remedy": error.remedy or ""}) + "\n")
        return error.exit_code
    fd = os.open(wish.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(gzip.compress(json_bytes(seen.to_json()), _LEVEL))
    return 0


if __name__ == "__main__":
    sys.exit(main())

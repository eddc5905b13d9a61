"""``python -m unidle.rank.checkpoint.trial PATH``: the restore test. Loads a checkpoint as a restart would, then forgets it."""

from __future__ import annotations

import sys

from unidle.checkpoint.layout import Damaged
from unidle.errors import UnidleError


def main() -> int:
    """Exit codes: 0 it loads, 1 it does not (the reason is the last line of standard error)."""
    from unidle.rank.checkpoint.reader import stored
    from unidle.rank.checkpoint.state import unpack

    try:
        manifest, shards = stored(sys.argv[1])
        shards.load_all()
        for rank in range(manifest.world):
            unpack(shards.own(rank))
    except (Damaged, UnidleError, OSError, RuntimeError) as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Entry of the per-rank supervisor: ``python -I -S -E entry.py RANK_DIR [LOCK_FD [PORT_FD]]``.

Kept this small because a script is compiled at each start, while what it imports is cached.
"""

import sys
from os.path import abspath, dirname

if __name__ == "__main__":
    # the package is loaded under the name "local", so that nothing of unidle's is imported with it
    # but the names and formats of checkpoints, which others need as well
    engine = dirname(dirname(dirname(dirname(abspath(__file__)))))
    sys.path += [engine, dirname(dirname(engine))]
    from local.ranks.supervisor.supervise import main  # type: ignore[import-not-found]

    sys.exit(main(sys.argv[1:]))

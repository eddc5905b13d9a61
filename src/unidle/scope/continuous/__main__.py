"""See ``unidle.scope.continuous.worker``."""

from __future__ import annotations

import sys

from unidle.scope.continuous.worker import main

if __name__ == "__main__":
    sys.exit(main())

"""The former name of :mod:`unidle.span.rank.member`: the commands of stored jobs have it, and a new attempt runs them again."""

from __future__ import annotations

import sys

from unidle.span.rank.member import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

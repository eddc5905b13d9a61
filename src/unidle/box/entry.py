"""Entry of a box: ``python -I -S -E entry.py DIR [--output]``, with what it imports next to it."""

import sys
from os.path import abspath, dirname

if __name__ == "__main__":
    sys.path.append(dirname(dirname(dirname(abspath(__file__)))))
    from unidle.box.command import main

    sys.exit(main(sys.argv[1:]))

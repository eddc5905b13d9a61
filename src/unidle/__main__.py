"""``python -m unidle`` is ``unidle``."""

from unidle.cli.main import main

main()

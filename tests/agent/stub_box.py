"""A box that does nothing: it holds its lock, and ends on SIGTERM. What it read of ``box.json`` is in ``seen.json``.

The variables UNIDLE_TEST_BOX: ``fails`` ends at once with a line on standard error.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

place = Path(sys.argv[1])
if os.environ.get("UNIDLE_TEST_BOX") == "fails":
    sys.exit("this box cannot run")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
lock = os.open(place / "box.lock", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("another box of this job runs")
os.truncate(lock, 0)
os.write(lock, f"{os.getpid()}\n".encode())
order = json.loads((place / "box.json").read_text())
(place / "seen.json").write_text(json.dumps({"order": order, "env": dict(os.environ), "pid": os.getpid()}))
signal.sigwait([signal.SIGTERM])

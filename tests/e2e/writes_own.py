"""A script that knows nothing of unidle: it saves at steps 5 and 10, and goes on from the newest that it finds.

writes_own.py DIRECTORY STEPS
"""

import re
import sys
import time
from pathlib import Path

where, steps = Path(sys.argv[1]), int(sys.argv[2])
where.mkdir(parents=True, exist_ok=True)
found = [int(m[1]) for path in where.iterdir() if (m := re.fullmatch(r"step_(\d+)\.bin", path.name))]
start = max(found, default=0)
print(f"goes on from {start}", flush=True)
for step in range(start + 1, steps + 1):
    time.sleep(0.03)
    print(f"step {step}", flush=True)
    if step in (5, 10):
        beside = where / ".tmp"
        beside.write_bytes(bytes([step]) * 100_000)
        beside.replace(where / f"step_{step}.bin")

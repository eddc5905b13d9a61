"""A script that knows nothing of unidle: it saves at steps 5 and 10, and goes on from the newest that it finds.

    writes_own.py DIRECTORY STEPS
"""

import os
import re
import sys
import time

where, steps = sys.argv[1], int(sys.argv[2])
os.makedirs(where, exist_ok=True)
found = [int(m[1]) for name in os.listdir(where) if (m := re.fullmatch(r"step_(\d+)\.bin", name))]
start = max(found, default=0)
print(f"goes on from {start}", flush=True)
for step in range(start + 1, steps + 1):
    time.sleep(0.03)
    print(f"step {step}", flush=True)
    if step in (5, 10):
        with open(f"{where}/.tmp", "wb") as file:
            file.write(bytes([step]) * 100_000)
        os.replace(f"{where}/.tmp", f"{where}/step_{step}.bin")

"""A script of one's own that writes JSON lines."""
import json
import time

for step in range(25):
    time.sleep(0.01)
    print(json.dumps({"loss": 2.0 - step / 30, "step": step, "tokens": step * 4096, "time": 1700000000 + step}))

"""The smallest gang: each rank says who it is, counts to ten and ends."""

import os
import time

rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")  # a single rank has neither
print(f"rank {rank} of {size}, attempt {int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)) + 1}")
for step in range(1, 11):
    time.sleep(0.2)
    print(f"step {step}")

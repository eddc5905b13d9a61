"""A training loop that reports itself to unidle; it runs just as well without."""

import random
import time
from pathlib import Path

try:
    import unidle.rank as rank
except ImportError:
    rank = None

STEPS = 40
CHECKPOINT = Path("checkpoints") / "state.txt"


def batches():
    while True:
        time.sleep(0.02)  # as if read from a slow disk
        yield [random.random() for _ in range(1000)]


def main():
    weight, start = 0.0, 0
    if CHECKPOINT.exists():
        start, weight = (float(part) for part in CHECKPOINT.read_text().split())
    source = batches()
    for step in range(int(start) + 1, STEPS + 1):
        if rank:
            with rank.data_wait():
                batch = next(source)
        else:
            batch = next(source)
        time.sleep(0.05)  # as if computed
        weight += 0.1 * (sum(batch) / len(batch) - weight)
        if rank:
            rank.step(step)
        if step % 10 == 0:
            CHECKPOINT.parent.mkdir(exist_ok=True)
            beside = CHECKPOINT.with_suffix(".tmp")
            beside.write_text(f"{step} {weight}")
            beside.replace(CHECKPOINT)
            if rank:
                rank.saved(step)


if __name__ == "__main__":
    main()

"""A rank of training that waits in each step, and shows it: run as a program, with how many steps it takes."""

import hashlib
import sys
import time

import unidle.rank as rank


def main(steps: int) -> None:
    state = b"start"
    for step in range(1, steps + 1):
        for _ in range(2):
            state = hashlib.sha256(state).digest()
            until = time.monotonic() + 0.004
            while time.monotonic() < until:
                pass
            with rank.waiting():
                time.sleep(0.02)
        rank.step(step)
        print(f"step {step} loss {int.from_bytes(state[:4], 'big') / 2**32!r}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

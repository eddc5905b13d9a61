"""A gang that adds up numbers; one rank of its first attempt kills itself. For bench/restart.py.

    allreduce.py DIRECTORY STEPS VICTIM STEP

What happened is left in DIRECTORY: `killed`, `entered` (rank 0 of the second attempt begins) and
`resumed` (its first step is done), each with the monotonic time in ns, and `done.RANK`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def main(directory: Path, steps: int, victim: int, kill_step: int) -> None:
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if not first_attempt and os.environ["RANK"] == "0":
        stamp(directory / "entered")
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoint = directory / "checkpoint"
    begin = torch.tensor(int(checkpoint.read_text()) if rank == 0 and checkpoint.exists() else 0)
    dist.broadcast(begin, 0)
    for step in range(int(begin) + 1, steps + 1):
        total = torch.ones(1000)
        dist.all_reduce(total)
        assert total[0] == dist.get_world_size()
        if rank == 0:
            print(f"iter {step}: loss {1 / step:.4f}, time 20.00ms", flush=True)
            (directory / "draft").write_text(str(step))
            (directory / "draft").rename(checkpoint)
            if not first_attempt:
                stamp(directory / "resumed")
        if first_attempt and (rank, step) == (victim, kill_step):
            stamp(directory / "killed")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    (directory / f"done.{rank}").touch()
    dist.destroy_process_group()


def stamp(path: Path) -> None:
    """Note the time of what happens for the first time."""
    if not path.exists():
        path.write_text(str(time.monotonic_ns()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))

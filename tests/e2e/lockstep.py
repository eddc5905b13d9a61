"""A rank that behaves like one of a real gang, without PyTorch: every step needs every rank.

Each step ends when all ranks have left a file for it, as a collective would. Rank 1 of the first
attempt dies by SIGKILL at step 6; rank 0 saves a checkpoint every 4 steps and prints the steps. Each
start leaves a line in ``starts``, so that a rank that runs twice shows.
"""

import os
import pathlib
import signal
import sys
import time

place = pathlib.Path(sys.argv[1])
steps, die_at = 10, 6
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
with (place / "starts").open("a") as starts:
    starts.write(f"{attempt} {rank} {os.getpid()}\n")

saves = place / "checkpoints"
saves.mkdir(exist_ok=True)
done = max((int(p.stem.split("_")[1]) for p in saves.glob("step_*.bin")), default=0)
for step in range(done + 1, steps + 1):
    if attempt == 1 and rank == 1 and step == die_at:
        time.sleep(0.5)  # rank 0 has told the step before
        os.kill(os.getpid(), signal.SIGKILL)
    (place / f"at.{attempt}.{step}.{rank}").touch()
    while not all((place / f"at.{attempt}.{step}.{r}").exists() for r in range(world)):
        time.sleep(0.002)
    time.sleep(0.06)
    if rank == 0:
        print(f"step {step}", flush=True)
        if step % 4 == 0:
            partial = saves / f".step_{step}.tmp"
            partial.write_bytes(b"x" * 1000)
            partial.rename(saves / f"step_{step}.bin")
            # a save takes a while to be known as durable; the crash must not race with it
            time.sleep(1.2)

"""A rank whose state survives a power cut: each step appends to a file elsewhere. Arguments: place, steps, seconds of each."""

import os
import pathlib
import sys
import time

place, steps, each_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rank, job, attempt = os.environ["RANK"], os.environ["UNIDLE_JOB"], os.environ["UNIDLE_ATTEMPT"]
with (place / "starts").open("a") as starts:
    starts.write(f"{os.environ['BOOT']} {job} {attempt} {rank}\n")
saves = place / f"saves.{job}"
saves.mkdir(exist_ok=True)
done = max((int(path.stem) for path in saves.glob("*.bin")), default=0)
for step in range(done + 1, steps + 1):
    time.sleep(each_s)
    if rank == "0":
        print(f"step {step}", flush=True)
        if step % 4 == 0:
            partial = saves / ".partial"
            partial.write_bytes(b"x")
            partial.rename(saves / f"{step}.bin")

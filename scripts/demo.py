"""The main job, as a user runs it: train, kill one rank halfway, watch it resume, read the ledger.

Uses the command line only. The store and the report stay in .cache/demo, to be looked at afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNIDLE = str(Path(sys.executable).parent / "unidle")


def ask(command: str, store: Path, *words: str) -> Any:
    """What ``unidle COMMAND --json`` says; None while there is nothing to say."""
    done = subprocess.run(
        [UNIDLE, command, *words, "--store", str(store), "--json"], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def kill_rank(store: Path, rank: int, after_step: int, run: subprocess.Popen[bytes]) -> None:
    """Wait until the job has taken ``after_step`` steps, then kill -9 one of its ranks."""
    while run.poll() is None:
        time.sleep(0.5)
        jobs = ask("list", store) or []
        if not jobs or jobs[0]["steps"] < after_step:
            continue
        detail = ask("show", store, jobs[0]["job"])
        pid = detail["runs"][-1]["ranks"][rank]["pid"]
        print(f"\ndemo: step {jobs[0]['steps']}: kill -9 rank {rank} (pid {pid})\n", file=sys.stderr, flush=True)
        os.kill(pid, signal.SIGKILL)
        return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="examples/gpt/job.yaml", help="job file")
    parser.add_argument("--kill-rank", type=int, default=2)
    parser.add_argument("--kill-after-step", type=int, default=70)
    options = parser.parse_args()
    place = ROOT / ".cache" / "demo"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    store = place / "store.db"
    words = [UNIDLE, "run", options.job, "--store", str(store), "--progress", "plain"]
    environment = {**os.environ, "UNIDLE_DEMO_DIR": str(place)}
    print("demo: " + " ".join(["unidle", *words[1:]]), file=sys.stderr, flush=True)
    with subprocess.Popen(words, cwd=ROOT, env=environment) as run:
        try:
            kill_rank(store, options.kill_rank, options.kill_after_step, run)
            code = run.wait()
        except KeyboardInterrupt:
            return run.wait()
    if code == 0:
        print(f"\nlook further:  .venv/bin/unidle explain gpt --store {store.relative_to(ROOT)}")
        print(f"               .venv/bin/unidle logs gpt --rank 0 --store {store.relative_to(ROOT)}")
        print(f"               .venv/bin/unidle ledger --by job,leaf --store {store.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main())

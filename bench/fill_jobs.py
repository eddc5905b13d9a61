"""Filler jobs: how long a job waits for the filler on its device, and what fillers make of a trace's free time.

Live: two CPU devices, one of them with a filler that resumes from its checkpoints. Jobs go to each in turn, so both see the
same machine. Modelled: jobs of one virtual cluster of Microsoft's Philly trace with and without fillers. UNIDLE_DATA names
the directory with philly/ (default: `../shared/data` next to the checkout); without it those rows are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _process import UNIDLE, environment, started, until
from _table import Row, main
from unidle.jobs.state import TERMINAL
from unidle.store.open import open_store
from unidle.view.jobs import JobView
from unidle.view.snapshot import load_view

DATA = Path(os.environ.get("UNIDLE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "philly"
CLUSTER = "e13805"
HEADER = "job,submit_s,duration_s,gpus,cpu_milli,memory_mib,model,queue,priority,preemptible,ranks"
FLEET = """
nodes:
- {id: filled, devices: {count: 1, kind: cpu}, labels: {side: filled}}
- {id: empty, devices: {count: 1, kind: cpu}, labels: {side: empty}}
guard: {preflight: "off"}
"""
FILLER = """
n=$(cat saved/n 2>/dev/null || echo 0)
while :; do n=$((n+1)); echo "step $n"; echo $n > saved/new; mv saved/new saved/n; sleep 0.02; done
"""
GOAL_S = 1.0


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    jobs = live(arguments.pairs)
    filled, empty = (
        [job for job in jobs if job.attempts[0].places[0].node == side] for side in ("filled", "empty")
    )
    for what, since in (("the decision", False), ("its submission", True)):
        ours, peers = [_begun_s(job, since) for job in filled], [_begun_s(job, since) for job in empty]
        yield Row(
            what=f"a job on a filler's device, from {what} to its first process", unit="s", ours=statistics.median(ours),
            peer=statistics.median(peers), peer_name="the same on an empty device",
            ratio=statistics.median(peers) / statistics.median(ours), goal=f"the longest at most {GOAL_S:g}",
            holds=max(ours) <= GOAL_S,
            how=f"measured here, median of {len(ours)} in turn ({min(ours):.3f} to {max(ours):.3f}; peer up to {max(peers):.3f})",
        )  # fmt: skip
    if DATA.is_dir():
        yield from replayed(arguments.nodes)
    else:
        print(f"fill_jobs: no traces in {DATA}: set UNIDLE_DATA", file=sys.stderr)


def live(pairs: int) -> list[JobView]:
    """The jobs that went to the two devices in turn, as the log has them."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "fleet.yaml").write_text(FLEET)
        (place / "saved").mkdir()
        up = (*UNIDLE, "up", "--fleet", "fleet.yaml", "--store", "s.db")
        with started(up, place, environment()):
            checkpoint = {"class": "filler", "checkpoint": {"path": "saved"}}
            filler = _submit(place, "filler", FILLER, side="filled", **checkpoint)
            for number in range(2 * pairs):
                if not until(lambda: _is(place, filler, frozenset({"running"})), 60):
                    sys.exit("the filler did not run")
                side = ("filled", "empty")[number % 2]
                job = _submit(place, f"job-{number}", "sleep 0.2", side=side)
                if not until(lambda job=job: _is(place, job, TERMINAL), 60):  # type: ignore[misc]
                    sys.exit(f"job {job} did not end")
            jobs = [job for job in _jobs(place).values() if job.id != filler]
            cancel = (*UNIDLE, "cancel", filler, "--store", "s.db")
            subprocess.run(cancel, cwd=place, env=environment(), check=True, capture_output=True)
            until(lambda: _is(place, filler, TERMINAL), 60)
        return jobs


def _begun_s(job: JobView, since_submission: bool) -> float:
    attempt = job.attempts[0]
    begun_ns = attempt.ranks[0].spawn_ns or 0
    return (begun_ns - (job.submitted_ns if since_submission else attempt.placed_ns)) / 1e9


def _submit(place: Path, name: str, script: str, *, side: str, **more: object) -> str:
    job = {"name": name, "command": ["bash", "-c", script], "node_labels": {"side": side}, **more}
    (place / f"{name}.json").write_text(json.dumps(job))
    command = (*UNIDLE, "submit", f"{name}.json", "--store", "s.db", "--json")
    done = subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["job"])


def _jobs(place: Path) -> dict[str, JobView]:
    store = open_store(str(place / "s.db"), create=False, read_only=True)
    try:
        return dict(load_view(store).jobs.items())
    finally:
        store.close()


def _is(place: Path, job: str, states: frozenset[str]) -> bool:
    found = _jobs(place).get(job)
    return found is not None and found.state in states


def replayed(nodes: int) -> Iterator[Row]:
    """What fillers got in a replay, and how many other jobs they moved."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "fleet.yaml").write_text(
            f'nodes: [{{id: "n[1-{nodes}]", devices: {{count: 8, kind: gpu, model: P100}}}}]\n'
        )
        with (DATA / f"{CLUSTER}.csv").open() as told:
            lines = [
                f"j{k},{row['submit_s']},{max(int(row['duration_s']), 1)},{row['gpus']},0,0,,default,0,false,"
                for k, row in enumerate(csv.DictReader(told))
            ]
        (place / "trace.csv").write_text("\n".join((HEADER, *lines)) + "\n")
        command = (
            *UNIDLE, "replay", "trace", "--fleet", "fleet.yaml", "--trace", "trace.csv", "--policy", "unidle", "--skip-misfits",
            "--fillers", str(8 * nodes), "--json",
        )  # fmt: skip
        done = subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)["fillers"]["unidle"]
    how = f"modelled, {found['jobs']} jobs of Philly's {CLUSTER} on {nodes} nodes with 8 GPUs, {found['fillers']} fillers of one GPU"
    yield Row(
        "other jobs that began or ended at another time than without fillers", "jobs", found["moved"], goal="0",
        holds=found["moved"] == 0, how=f"{how}, which made room {found['yields']:,} times",
    )  # fmt: skip
    whole = found["free_before_gpu_h"]
    yield Row(
        "free GPU time that became useful filler work", "%", 100 * found["filled_gpu_h"] / whole,
        peer=100 * found["discarded_gpu_h"] / whole, peer_name="discarded", how=f"{how}; of {whole:,.0f} GPU-h",
    )  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=10, help="jobs on each of the two devices")
    parser.add_argument("--nodes", type=int, default=2, help="of the replay, with 8 GPUs each")


if __name__ == "__main__":
    main("fill_jobs", rows, _arguments)

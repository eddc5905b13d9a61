"""The whole of it with the real profiler: an unmodified script, looked at while it runs."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import needs
from e2e.commands import start, unidle
from e2e.gangs import jobs_of
from unidle.store.open import open_store
from unidle.store.profiles import ProfileShelf
from waiting import wait_until

SCRIPT = """
import time

def crunch():
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        sum(range(500))

def rest():
    time.sleep(0.02)

while True:
    crunch()
    rest()
"""
FLEET = {
    "nodes": [{"id": "n1", "devices": {"count": 2, "kind": "cpu"}}],
    "guard": {"preflight": "off"},
    "profile": {"seconds": 1, "every_s": 2, "hz": 199},
}


@needs.ebpf
def test_what_a_silent_script_does_is_known_afterwards(tmp_path):
    store = tmp_path / "s.db"
    (tmp_path / "fleet.yaml").write_text(json.dumps(FLEET))
    (tmp_path / "silent.py").write_text(SCRIPT)
    words = ("run", "--profile", "--fleet", tmp_path / "fleet.yaml", "--store", store, "--ranks", 2, "--")
    with start(*words, sys.executable, tmp_path / "silent.py") as process:
        try:

            def looked() -> bool:
                with closing(open_store(str(store), create=False, read_only=True)) as opened:
                    return len({row.rank for row in ProfileShelf(opened).rows(_job(store), 0, 2**62)}) == 2

            wait_until(lambda: jobs_of(store), 60, "the job")
            wait_until(looked, 60, "a look at both ranks")
            done = unidle("profile", _job(store), "--since", "1h", "--store", store, "--format", "folded")
            assert done.returncode == 0, done.stderr
            assert "crunch" in done.stdout and "rest" in done.stdout
            told = json.loads(
                unidle("profile", _job(store), "--since", "1h", "--store", store, "--json").stdout
            )
            assert round(sum(told["budget"].values()), 6) == 100
        finally:
            process.terminate()
            process.wait(60)


def _job(store) -> str:
    (job,) = jobs_of(store).values()
    return job.id

"""The fuzzing of what Python reads: each target has seeds that it takes, and each class of fault is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "fuzz_python.py"
LISTED = subprocess.run(
    [sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True
).stdout.split()

FAULTS = """
import sys, time
from pathlib import Path
sys.path.insert(0, {scripts!r})
import fuzz_python, fuzz_targets

def wrong(data):
    if b"never" not in data:
        return
    {fault}

fuzz_targets.TARGETS["wrong"] = lambda place: wrong
fuzz_python.INPUT_S = 1.0
fuzz_python.FOUND = fuzz_python.ROOT = Path({found!r})
seed = Path({found!r}) / "input"
seed.write_bytes(b"never")
raise SystemExit(fuzz_python.again("wrong", seed))
"""


@pytest.mark.parametrize("target", LISTED)
def test_every_target_has_seeds_and_no_finding_in_them(target: str) -> None:
    seeds = [*(ROOT / "tests" / "fuzz" / "corpus" / target).iterdir()]
    assert seeds and sum(seed.stat().st_size for seed in seeds) < 50_000
    done = subprocess.run(
        [sys.executable, SCRIPT, target, "--seconds", "0.1"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("time.sleep(30)", "took longer than 1 s"),
        ("bytearray(1 << 30)", "took more than 512 MiB"),
        ("pass", "no finding"),
    ],
)
def test_an_exception_a_slow_input_and_much_memory_are_findings(
    fault: str, told: str, tmp_path: Path
) -> None:
    script = FAULTS.format(scripts=str(ROOT / "scripts"), found=str(tmp_path), fault=fault)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert told in done.stdout, done.stderr
    assert done.returncode == (told != "no finding")


def test_an_unknown_target_is_named() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no target nothing" in done.stderr

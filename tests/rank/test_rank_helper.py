"""``unidle.rank`` inside real processes: it reports, and it never holds up or breaks a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"


def run(script: str, tmp_path: Path, where: str | None = None, pipe_fd: int = -1) -> str:
    """Run a script with the helper's variable; returns what it printed."""
    path = tmp_path / "script.py"
    path.write_text(script)
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    env.pop("UNIDLE_RANK_FD", None)
    if where is not None:
        env["UNIDLE_RANK_FD"] = where
    passed = (pipe_fd,) if pipe_fd >= 0 else ()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env=env, pass_fds=passed, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def records(script: str, tmp_path: Path) -> list[dict[str, Any]]:
    """What the script reports through a pipe like the supervisor's."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        run(script, tmp_path, f"{write}:{os.fstat(write).st_ino}", write)
        os.close(write)
        write = -1
        data = b""
        while chunk := os.read(read, 1 << 20):
            data += chunk
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    return [json.loads(line) for line in data.splitlines()]


EVERYTHING = """
import unidle.rank as rank
rank.ready()
with rank.restoring(): pass
with rank.compiling(): pass
with rank.data_wait(): pass
rank.step()
rank.step(41)
rank.step()
with rank.evaluation(): pass
with rank.saving(): pass
rank.saved()
rank.saved(7, path="ckpt/\\u00e9 \\"7\\"")
print("done")
"""


COUNTED = """
import torch, warnings
import unidle.rank as rank
warnings.simplefilter("ignore")
model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 4, bias=False))
x = torch.ones(3, 8)
for step in (1, 2, 3):
    if step == 3 and COMPILED:
        torch.compile(model, backend="eager")(x)
    model(x).sum().backward()
    rank.step(step)
"""


@pytest.mark.parametrize("compiled", [False, True])
def test_the_operations_of_the_second_step_are_counted_unless_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    monkeypatch.setenv("UNIDLE_COUNT_FLOPS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    script = COUNTED.replace("step == 3 and COMPILED", f"step == 1 and {compiled}")
    kinds = [(r["k"], r["n"]) for r in records(script, tmp_path)]
    # forward 2 x 3 x (8 x 16 + 16 x 4); backward the same for both weights, and for the input of the second layer
    counted = [] if compiled else [("flops", 2 * 3 * (2 * 8 * 16 + 3 * 16 * 4))]
    assert kinds == [("step", 1), ("step", 2), *counted, ("step", 3)]


def test_each_call_is_one_record_in_order(tmp_path: Path) -> None:
    found = records(EVERYTHING, tmp_path)
    short = [(r["k"], r.get("w", r.get("n"))) for r in found if r["k"] != "begin"]
    assert short == [
        ("ready", None),
        ("span", "restore"),
        ("span", "compile"),
        ("span", "data"),
        ("step", 1),
        ("step", 41),
        ("step", 42),
        ("span", "eval"),
        ("span", "save"),
        ("saved", 42),
        ("saved", 7),
    ]
    assert found[-1]["text"] == 'ckpt/é "7"'
    times = [r.get("e", r["t"]) for r in found]
    assert times == sorted(times)


def test_two_lines_are_enough(tmp_path: Path) -> None:
    [step] = records("import unidle.rank as rank; rank.step()", tmp_path)
    assert (step["k"], step["n"], step["c"]) == ("step", 1, 1)


@pytest.mark.parametrize(
    "where", [None, "", "7", "nonsense", "1:2", "99999:5", "-1:5", "5:", "0:0", "9" * 40 + ":1"]
)
def test_without_unidle_every_call_does_nothing(tmp_path: Path, where: str | None) -> None:
    assert run(EVERYTHING, tmp_path, where) == "done\n"


def test_descriptor_that_became_a_file_is_not_written_to(tmp_path: Path) -> None:
    script = """
import os, sys
import unidle.rank as rank
rank.step()
fd = int(os.environ["UNIDLE_RANK_FD"].split(":")[0])
os.close(fd)
file = os.open("checkpoint", os.O_CREAT | os.O_WRONLY)
os.dup2(file, fd)
rank.step(); rank.saved()
os.write(fd, b"state")
"""
    assert len(records(script, tmp_path)) == 1
    assert (tmp_path / "checkpoint").read_bytes() == b"state"


def test_another_pipe_under_the_same_number_is_not_written_to(tmp_path: Path) -> None:
    script = """
import os
import unidle.rank as rank
fd = int(os.environ["UNIDLE_RANK_FD"].split(":")[0])
read, write = os.pipe()
os.dup2(write, fd)
rank.step()
os.set_blocking(read, False)
try:
    print(os.read(read, 100))
except BlockingIOError:
    print("nothing")
"""
    assert records(script, tmp_path) == []


def test_nobody_reading_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(EVERYTHING, tmp_path, f"{write}:{os.fstat(write).st_ino}", write) == "done\n"
    finally:
        os.close(write)


def test_full_pipe_never_blocks_and_what_was_dropped_is_counted(tmp_path: Path) -> None:
    script = """
import json, os, time
import unidle.rank as rank
for n in range(1, 20001):
    rank.step(n)
read = int(os.environ["READ_FD"])
os.set_blocking(read, False)
data, deadline = b"", time.monotonic() + 30
while b"dropped" not in data and time.monotonic() < deadline:
    try:
        data += os.read(read, 1 << 16)
    except BlockingIOError:
        rank.step(20001)
seen = [json.loads(line) for line in data.splitlines()]
steps = sum(r["k"] == "step" and r["n"] <= 20000 for r in seen)
[dropped] = [r["n"] for r in seen if r["k"] == "dropped"]
print(steps > 100, 20000 - steps <= dropped)
"""
    read, write = os.pipe()
    path = tmp_path / "script.py"
    path.write_text(script)
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "READ_FD": str(read),
        "UNIDLE_RANK_FD": f"{write}:{os.fstat(write).st_ino}",
    }
    try:
        done = subprocess.run(
            [sys.executable, str(path)],
            env=env,
            pass_fds=(read, write),
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(read)
        os.close(write)
    assert done.stdout == "True True\n", done.stderr


def test_forked_children_do_not_report(tmp_path: Path) -> None:
    script = """
import os
import unidle.rank as rank
rank.step()
if os.fork() == 0:
    rank.step(); rank.saved()
    with rank.data_wait(): pass
    os._exit(0)
os.wait()
rank.step()
"""
    assert [r["n"] for r in records(script, tmp_path)] == [1, 2]


def test_threads_report_steps_whole_and_only_the_training_thread_waits(tmp_path: Path) -> None:
    script = """
import threading
import unidle.rank as rank
rank.step(0)
def other():
    for n in range(50):
        rank.step(n)
        with rank.data_wait(): pass
threads = [threading.Thread(target=other) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    found = records(script, tmp_path)
    assert [r["k"] for r in found] == ["step"] * 401


def test_wait_inside_a_wait_is_part_of_it(tmp_path: Path) -> None:
    script = """
import unidle.rank as rank
with rank.evaluation():
    with rank.data_wait(): pass
with rank.data_wait(): pass
"""
    assert [r["w"] for r in records(script, tmp_path) if r["k"] == "span"] == ["eval", "data"]


def test_wait_that_raises_is_over_and_its_error_goes_on(tmp_path: Path) -> None:
    script = """
import unidle.rank as rank
try:
    with rank.data_wait():
        raise StopIteration
except StopIteration:
    print("raised")
rank.step()
"""
    assert [r["k"] for r in records(script, tmp_path)] == ["begin", "span", "step"]


@pytest.mark.parametrize("step", ["'x'", "None", "-1", "1.5", "float('nan')", "[]", "2**70", "object()"])
def test_whatever_is_passed_nothing_is_raised(tmp_path: Path, step: str) -> None:
    script = f"import unidle.rank as rank; rank.step({step}); rank.saved({step}, {step}); print('on')"
    for record in records(script, tmp_path):
        assert record["t"] > 0


def test_importing_needs_nothing_but_the_standard_library_and_little_of_it(tmp_path: Path) -> None:
    script = """
import sys
before = set(sys.modules)
import unidle.rank
print(sorted(m for m in set(sys.modules) - before if not m.startswith("unidle")))
print(sorted(m for m in sys.modules if m.startswith("unidle")))
"""
    out = run(script, tmp_path)
    assert out.splitlines() == ["['__future__']", "['unidle', 'unidle.rank']"]

"""Runs that are forked from a process which has imported PyTorch: they are what new processes are, or they become new processes."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tune_trial.forked import with_plan
from unidle.tune.edits import Edit
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.evidence import compare
from unidle.tune.trial.forks import ForkPlan, fork_plan
from unidle.tune.trial.workshop import AGAIN, SAME, Workshop

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
PROGRAM = """import sys
BEFORE = 0
import torch
import own
weight = torch.randn(4, requires_grad=True)
optimizer = torch.optim.AdamW([weight], lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
AFTER = 0
"""
PLACE = """import json, os, threading
print(json.dumps([
    sys.argv, sys.orig_argv[1:], sys.path, __name__, __file__, __spec__ is None, os.getcwd(), threading.active_count(), sys.flags.optimize,
    sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names), sorted(os.environ.keys() - {"TUNE_TRIAL_MARK"}),
    sys.modules["__main__"].AFTER if "AFTER" in globals() else None, os.getpgrp() == os.getpid(), sys.stdin.read(),
]))"""
LEAVES = """import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"], start_new_session=True, env={})
print(child.pid)"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    tree, scratch = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("scratch")
    (tree / "train.py").write_text(PROGRAM)
    (tree / "own.py").write_text("")
    shop = with_plan(
        Workshop(tree, (sys.executable, "-u", "train.py", "--a", "b"), scratch, time.monotonic() + 3600)
    )
    shop.serve(SAME, AGAIN)
    assert shop.plan is not None
    yield shop
    shop.close()


@pytest.fixture
def plan(shop: Workshop) -> Iterator[ForkPlan]:
    """Each test begins with forks, also after one that went without."""
    kept = shop.plan
    assert kept is not None
    yield kept
    shop.plan = kept


def changed(shop: Workshop, old: str, new: str) -> Path:
    return shop.copy([TuneChange("UDL206", "train.py", 1, "same", "a test", (Edit("train.py", old, new),))])


def printed(shop: Workshop, folder: Path, server: str) -> str:
    done = shop.run(folder, server=server)
    assert not done.failed, done.errors
    return done.output


def test_a_forked_run_computes_what_a_new_process_computes(shop: Workshop, plan: ForkPlan) -> None:
    for options in ({}, {"TUNE_TRIAL_FLOAT64": "1", "TUNE_TRIAL_SEED": "7"}):
        forked, _ = shop.observed((), dict(options), 0)
        alone, _ = shop.observed((), dict(options), 0, "")
        assert forked.shows
        assert forked.steps == 3
        assert compare(forked, alone, 0.0).where == ""
    assert shop.plan is plan


@pytest.mark.parametrize("at", ["BEFORE = 0", "AFTER = 0"])
def test_a_forked_program_sees_what_a_new_process_sees(shop: Workshop, plan: ForkPlan, at: str) -> None:
    folder = changed(shop, at, PLACE)
    forked, alone = (json.loads(printed(shop, folder, server)) for server in (SAME, ""))
    assert forked == alone
    assert shop.plan is plan
    assert ("torch" in forked[9]) == (at == "AFTER = 0")


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    "text",
    [
        "import os; os.environ['OMP_NUM_THREADS'] = '3'",
        "import os; os.makedirs('torch2', exist_ok=True); open('torch2/torch.py', 'w').write('__getattr__ = None'); sys.path.insert(0, 'torch2'); import torch; sys.exit()",
        "sys.exit(213)",
    ],
)
def test_a_program_that_cannot_be_forked_gets_a_new_process(shop: Workshop, text: str) -> None:
    done = shop.run(changed(shop, "BEFORE = 0", text), server=SAME)
    assert done.failed == ("" if "213" not in text else "ended with 213"), done.errors
    assert shop.plan is None


def test_what_a_forked_run_leaves_is_killed(shop: Workshop, plan: ForkPlan) -> None:
    pid = int(printed(shop, changed(shop, "AFTER = 0", LEAVES), SAME))
    assert not Path(f"/proc/{pid}").exists()
    assert shop.plan is plan


def test_a_forked_run_that_never_ends_is_killed(shop: Workshop, plan: ForkPlan) -> None:
    folder = changed(shop, "AFTER = 0", "open('begun', 'w').close()\nwhile True: pass")
    limit, shop.limit_s = shop.limit_s, 20
    try:
        done = shop.run(folder, server=SAME)
    finally:
        shop.limit_s = limit
    assert done.timed_out
    assert (folder / "begun").exists()
    assert shop.plan is plan


@pytest.mark.usefixtures("plan")
def test_runs_of_one_server_share_the_seed_of_hashes_and_those_of_two_do_not(shop: Workshop) -> None:
    folder = changed(shop, "AFTER = 0", "print(hash('a'))")
    one, other, again = (printed(shop, folder, server) for server in (SAME, SAME, AGAIN))
    assert one == other
    assert one != again


def test_a_server_that_has_ended_is_done_without(shop: Workshop, plan: ForkPlan, tmp_path: Path) -> None:
    other = Workshop(shop.tree, shop.command, tmp_path, shop.end, plan=plan)
    other.serve(SAME)
    other.servers[SAME].process.kill()
    other.servers[SAME].process.wait()
    assert not other.run(other.copy(()), server=SAME).failed
    assert other.plan is None
    other.close()


def test_programs_of_another_form_are_not_forked(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.write_text(json.dumps([["numpy", "/lib/numpy.py"], ["torch", "/lib/torch.py"], ["own", f"{tmp_path}/own.py"]]))  # fmt: skip
    for command in (["bash", "run.sh"], ["python", "-c", "1"], ["python", "-I", "a.py"], ["python", "-m"], ["torchrun", "a.py"]):  # fmt: skip
        assert fork_plan(command, modules, [tmp_path]) is None
    found = fork_plan(["python3.12", "-O", "-m", "package.train", "--a"], modules, [tmp_path])
    assert found == ForkPlan(("python3.12", "-O"), True, ("numpy", "torch"), ("own",))
    assert fork_plan(["python", "a.py"], tmp_path / "none", [tmp_path]) is None

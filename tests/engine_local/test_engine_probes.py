"""What a process leaves that is killed while it looks at control groups."""

from __future__ import annotations

import secrets
import subprocess
import sys

import needs
from unidle.engine.local.ranks.cgroups import remove_probes, usable


@needs.cgroups
def test_a_killed_look_leaves_nothing_once_another_one_was_made() -> None:
    root = needs.cgroup_roots()[0]
    name = f"unidle-{secrets.token_hex(4)}"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (root / name / f"probe{ended.pid}").mkdir(parents=True)
    assert usable({"freezer": [str(root)]}, name) == {"freezer": str(root)}
    assert not (root / name).exists()


@needs.cgroups
def test_a_look_that_is_being_made_and_other_groups_stay() -> None:
    root = needs.cgroup_roots()[0] / f"unidle-{secrets.token_hex(4)}"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        looks, rank = root / f"probe{alive.pid}", root / "job.1.0"
        looks.mkdir(parents=True)
        rank.mkdir()
        try:
            remove_probes(str(root))
            assert looks.exists() and rank.exists()
        finally:
            alive.communicate(b"\n")
            remove_probes(str(root))
            assert not looks.exists() and rank.exists()
            rank.rmdir()
            root.rmdir()

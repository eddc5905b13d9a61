"""Restarts through a box from a warm Python: what a start waits for, and what it does not outlive."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from box.small_hub import Peer, RealBox, SmallHub, hub_and_box, python_orders
from unidle import wire
from unidle.engine.local.ranks import process_tree
from waiting import wait_until

SCRIPT = """
import os, sys, time
print("warm" if "torch" in sys.modules else "cold", os.environ["ATTEMPT"], flush=True)
for n in range(1, 100_000):
    print(f"step {n}/100000 loss {1 / n:.4f}", flush=True)
    time.sleep(0.05)
"""


class WarmJob:
    """A job that wants warm restarts; its PyTorch is a package whose import ends once the file ``gate`` is there."""

    def __init__(self, place: Path) -> None:
        self.place, self.gate = place, place / "may_import"
        (place / "script.py").write_text(SCRIPT)
        package = place / "packages" / "torch"
        package.mkdir(parents=True)
        wait = f"import os, time\nwhile not os.path.exists({str(self.gate)!r}): time.sleep(0.01)\n"
        (package / "__init__.py").write_text(wait)
        self.warm = {"PYTHONPATH": str(place / "packages"), "OF": str(place)}

    def start(self, peer: Peer, attempt: int, **more: Any) -> dict[str, Any]:
        orders = python_orders("", attempt)
        orders["env"] |= {**self.warm, "ATTEMPT": str(attempt)}
        orders |= {
            "argv": [sys.executable, "-u", "script.py"], "workdir": str(self.place), "warm": self.warm, **more,
        }  # fmt: skip
        return peer.ask(wire.START, attempt=attempt, ranks=[{"rank": 0, "orders": orders}])

    def pythons(self) -> set[int]:
        """Warm Pythons of the job."""
        found = process_tree.with_environment(f"OF={self.place}")
        return {pid for pid in found if b"_unidle_local" in Path(f"/proc/{pid}/cmdline").read_bytes()}

    def under_way(self, peer: Peer, hub: SmallHub) -> None:
        """A first attempt that runs, and the warm Python that begins with it."""
        assert self.start(peer, 1)["ok"]
        hub.mark("step")
        wait_until(self.pythons, what="a warm Python")

    def end_first(self, peer: Peer, hub: SmallHub) -> None:
        peer.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=0)
        hub.end_of(1)


def first_line(box: RealBox, attempt: int) -> Callable[[], str]:
    log = box.rank(attempt) / "log"
    return lambda: log.read_text().partition("\n")[0] if log.exists() else ""


def test_a_start_waits_for_a_warm_python_that_is_on_its_way(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer, job = hub.peer().welcome(), WarmJob(tmp_path)
        job.under_way(peer, hub)
        assert first_line(box, 1)() == "cold 1"
        job.end_first(peer, hub)
        assert job.start(peer, 2)["ok"]
        assert job.start(peer, 2)["ok"], "the same command again"
        assert not (box.rank(2) / "claimed").exists()
        job.gate.touch()
        assert wait_until(first_line(box, 2), what="the second start") == "warm 2"
        hub.mark("step", 2)


def test_a_stop_while_a_start_waits_comes_to_an_end_and_nothing_starts(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer, job = hub.peer().welcome(), WarmJob(tmp_path)
        job.under_way(peer, hub)
        job.end_first(peer, hub)
        job.start(peer, 2)
        peer.ask(wire.STOP, attempt=2, ranks=[0], grace_ns=0)
        assert hub.end_of(2)["text"] == "stopped before it was started"
        job.gate.touch()
        assert job.start(peer, 3)["ok"]
        assert wait_until(first_line(box, 3), what="the third start") == "warm 3"
        assert first_line(box, 2)() == ""


def test_a_lease_that_ends_while_a_start_waits_ends_the_start(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer, job = hub.peer().welcome(deadline_s=3.0), WarmJob(tmp_path)
        job.under_way(peer, hub)
        job.end_first(peer, hub)
        job.start(peer, 2)
        peer.mute = True
        wait_until(
            lambda: box.journal_ends(2) if box.journal(2) else False, 60, "the end of the second attempt"
        )
        job.gate.touch()
        again = hub.peer(2).welcome()
        assert job.start(again, 3)["ok"]
        wait_until(first_line(box, 3), what="the third start")
        assert first_line(box, 2)() == ""


def test_a_warm_python_ends_with_its_box_and_the_next_box_has_another(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, box):
        peer, job = hub.peer().welcome(), WarmJob(tmp_path)
        job.gate.touch()
        job.under_way(peer, hub)
        before = job.pythons()
        box.kill()
        wait_until(lambda: not job.pythons() & before, what="the end of the warm Python")
        box.run()
        hub.peer(2).welcome()
        wait_until(job.pythons, what="another warm Python")
        assert hub.marks[1, 0], "the rank went on"


def test_a_wish_that_cannot_be_used_is_refused_with_its_field(tmp_path: Path) -> None:
    with hub_and_box(tmp_path) as (hub, _):
        peer, job = hub.peer().welcome(), WarmJob(tmp_path)
        done = job.start(peer, 1, warm={"A": 1})
        assert not done["ok"]
        assert "no usable warm" in done["why"]
        assert "no usable warm" in hub.end_of(1)["text"] or hub.end_of(1)["k"] == "lost"

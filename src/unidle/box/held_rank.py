"""One rank that this box holds: its watch, what the hub has not got of it, its output."""

from __future__ import annotations

import time

from unidle.boot import boottime_ns
from unidle.box.mark_feed import Glances, MarkFeed
from unidle.box.output_feed import OutputFeed
from unidle.engine.local.ranks import cgroups, rundir
from unidle.engine.local.ranks.rank_watch import RankWatch

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

    from unidle.box.output_copy import OutputCopy


class HeldRank:
    """A rank of a run directory, perhaps begun by an earlier box. ``groups`` are its control groups."""

    def __init__(self, directory: str, rank: int, groups: dict[str, str]) -> None:
        self.rank = rank
        self.adopted = False  # an earlier box held it
        self.feed: MarkFeed | None = None
        self.output: OutputCopy | None = None
        self.printed: OutputFeed | None = None  # what the hub is sent of its output
        self.glances = Glances()
        self.waiting: tuple[rundir.SupervisorOrders, bool] | None = (
            None  # a start that waits for a warm Python
        )
        orders = rundir.read_json(f"{directory}/{rundir.ORDERS}") or {}
        env = orders.get("env")
        self.watch = RankWatch(
            directory, rank, _run_id(env if isinstance(env, dict) else {}), groups, self.glances
        )
        offset, grace = orders.get("clock_offset_ns"), orders.get("grace_ns")
        self.offset_ns = offset if isinstance(offset, int) else time.time_ns() - boottime_ns()
        self.grace_ns = grace if isinstance(grace, int) else 0
        self.workdir = str(orders.get("workdir", ""))

    def take(self, orders: rundir.SupervisorOrders) -> None:
        """The rank is started with these."""
        self.watch.run_id = _run_id(orders.env)
        self.offset_ns, self.grace_ns = orders.clock_offset_ns, orders.grace_ns
        self.workdir = orders.workdir

    @property
    def directory(self) -> str:
        return self.watch.directory

    @property
    def lives(self) -> bool:
        """Whether processes of it may run."""
        return self.watch.state in ("unknown", "alive", "gone")

    def now_ns(self) -> int:
        """The controller's clock, in which its marks are."""
        return boottime_ns() + self.offset_ns

    def resume(self, known: int, place: int | None) -> None:
        """Send its marks from ordinal ``known`` on, and its output from byte ``place`` on; None: nothing of it."""
        self.hush()
        self.feed = MarkFeed(self.watch, known)
        self.printed = None if place is None else OutputFeed(self.directory, place)

    def hush(self) -> None:
        """Send no more marks and output: the connection is gone."""
        if self.feed is not None:
            self.feed.close()
            self.feed = None
        if self.printed is not None:
            self.printed.close()
            self.printed = None

    @property
    def is_behind(self) -> bool:
        """Whether the hub has not got all that was to be sent of its marks, and after its end of its output."""
        unread = self.printed is not None and self.watch.state == "ended" and not self.printed.done
        return unread or (self.feed is not None and self.feed.behind)

    def let_go(self) -> None:
        self.hush()
        if self.output is not None:
            self.output.close()
        self.watch.let_go()


def _run_id(env: dict[str, Any]) -> str:
    """By it, processes of a rank are found that its supervisor left; without one in the environment, one that no process has."""
    found = env.get("UNIDLE_RUN_ID") or env.get("TORCHELASTIC_RUN_ID")
    return found if isinstance(found, str) else "\0"


def checked_orders(content: object, groups: dict[str, str], boot: str, lease: str) -> rundir.SupervisorOrders:
    """Orders from the hub, completed with what is known on this host alone. Errors: ValueError with the field that cannot be used."""
    if not isinstance(content, dict):
        raise ValueError("the orders are no object")
    for field, kind in _NEEDED.items():
        if not isinstance(content.get(field), kind) or isinstance(content[field], bool):
            raise ValueError(f"the orders have no usable {field}")
    for field, kinds in _OPTIONAL.items():
        if not isinstance(content.get(field), (*kinds, type(None))) or isinstance(content.get(field), bool):
            raise ValueError(f"the orders have no usable {field}")
    if not content["argv"] or not all(isinstance(word, str) for word in content["argv"] + content["unset"]):
        raise ValueError("the orders have no usable argv or unset")
    if not all(isinstance(value, str) for value in content["env"].values()):
        raise ValueError("the orders have no usable env")
    known = {field: content[field] for field in (*_NEEDED, *_OPTIONAL) if content.get(field) is not None}
    cpus = content.get("cpus")
    known["groups"] = cgroups.needed(groups, cpus)
    return rundir.SupervisorOrders(**known, boot=boot, lease=lease)


_NEEDED = {"argv": list, "workdir": str, "env": dict, "unset": list, "clock_offset_ns": int, "grace_ns": int}
_OPTIONAL = {
    "memory_bytes": (int,), "cpus": (int, float), "pids": (int,), "progress_pattern": (str,),
    "checkpoint_path": (str,), "log_file_bytes": (int,), "log_files": (int,),
}  # fmt: skip

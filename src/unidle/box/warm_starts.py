"""Warm starts of the ranks of a job: from a Python that has imported PyTorch, made once an attempt is under way.

It lives as long as the box. Whatever it cannot do, or not yet, is started cold.
"""

from __future__ import annotations

import os

from unidle.boot import boottime_ns
from unidle.engine.local.ranks import rundir

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unidle.box.held_rank import HeldRank
    from unidle.engine.local.ranks.rundir import SupervisorOrders
    from unidle.engine.local.ranks.warm_pool import WarmPool

SETTLED_NS = 10_000_000_000  # ranks that show no steps have started, most likely
FILE = "warm.json"


class WarmStarts:
    """Of one job, whose directory is ``directory``: a file there has the wish, for the next box of the job."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{FILE}"
        self._pool: WarmPool | None = None
        self._argv: list[str] = []
        self._env: dict[str, str] | None = None  # the whole that all ranks of all attempts have
        self._alive_ns = 0  # since when all ranks of the newest attempt are there
        self._prepared = False  # what that attempt's restart needs

    def adopt(self) -> None:
        """Take over the wish that an earlier box was given."""
        known = rundir.read_json(self._path)
        if known is not None:
            self._take(known.get("env"), known.get("argv"), known.get("unset"))

    def want(self, wish: object, orders: SupervisorOrders) -> None:
        """A rank starts; ``wish`` is what all ranks of its job have in their environment, None for a job without warm starts.

        Errors: ValueError for a wish that cannot be used.
        """
        self._alive_ns, self._prepared = 0, False
        if wish is None or not self._take(wish, orders.argv, orders.unset):
            self._env = None
            if wish is not None:
                raise ValueError("the orders have no usable warm")
        elif not os.path.exists(self._path):
            rundir.write_json(self._path, {"env": wish, "argv": orders.argv, "unset": orders.unset})

    def is_near(self) -> bool:
        """Whether a start waits a little, as a warm Python for it is still importing."""
        return self._pool is not None and self._env is not None and self._pool.is_near(self._argv, self._env)

    def spawn(self, directory: str, fds: Sequence[int]) -> int | None:
        """Start the supervisor of a rank; its pid, or None: start it cold."""
        if self._pool is None or self._env is None:
            return None
        return self._pool.spawn(self._argv, self._env, directory, fds)

    def advance(self, ranks: Sequence[HeldRank]) -> None:
        """``ranks``, those of the newest attempt, may be under way by now: then prepare their next start."""
        if self._env is None or self._prepared or not ranks:
            return
        if any(held.watch.state != "alive" or held.watch.spawned is None for held in ranks):
            return
        self._alive_ns = self._alive_ns or boottime_ns()
        if not any(held.glances.under_way for held in ranks) and boottime_ns() < self._alive_ns + SETTLED_NS:
            return
        self._prepared = True
        if self._pool is None:  # few jobs ask for it
            from unidle.engine.local.ranks.warm_pool import WarmPool

            self._pool = WarmPool()
        self._pool.prepare(self._argv, self._env)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _take(self, env: object, argv: object, unset: object) -> bool:
        if not isinstance(env, dict) or not isinstance(argv, list) or not isinstance(unset, list):
            return False
        if not all(isinstance(text, str) for text in (*env, *env.values(), *argv, *unset)):
            return False
        own = {**os.environ, **env}
        self._argv, self._env = argv, {name: value for name, value in own.items() if name not in unset}
        return True

"""Starts the ranks of gangs on this machine: port and environments of the gang, then orders and supervisor of each rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.clock import RealClock
from unidle.engine.local import injection, launch
from unidle.engine.local.ranks import rundir, spawn
from unidle.engine.local.ranks.rank_watch import RankWatch
from unidle.engine.local.ranks.supervisors import Supervisors
from unidle.engine.protocol import StartGang
from unidle.errors import CannotRun
from unidle.fleet import Fleet

if TYPE_CHECKING:
    from unidle.engine.local.devices.slicing import Grant
    from unidle.engine.local.ranks.warm_pool import WarmPool


_FIRST_WORTH_S: Final = 120.0  # ranks that import for themselves take no less


class GangStarts:
    """``name`` is of the engine; ``grants``: what each rank of a gang gets of its devices, where those are cut.

    ``imports``: what a warm Python imports if there is one from the first start of a gang on, not only for its restarts.
    """

    def __init__(
        self, root: Path, fleet: Fleet, clock: RealClock, name: str, supervisors: Supervisors,
        grants: Callable[[StartGang], list[Grant] | None],
    ) -> None:  # fmt: skip
        self._root, self._fleet, self._clock, self._name = root, fleet, clock, name
        self._spaces = {node.id: node.netns for node in fleet.nodes if node.netns}
        self._supervisors, self._grants = supervisors, grants
        self.warm: WarmPool | None = None
        self.imports: tuple[str, ...] = ()

    def start(self, command: StartGang, watches: Sequence[RankWatch]) -> bool:
        """Start what is unstarted: rank 0 first, with the port that all ranks receive. Whether to call it again."""
        now_ns = self._clock.now_ns()
        for watch in watches:
            watch.look(now_ns)
            self._supervisors.follow(watch)
        # one whose supervisor is on its way may yet turn out to be unstarted
        again = any(watch.state == "unknown" for watch in watches)
        unstarted = [w for w in watches if w.state == "unstarted" and not w.stop_asked]
        if not unstarted:
            return again
        try:
            self._start_ranks(command, unstarted)
        except (OSError, CannotRun) as error:
            refused = isinstance(error, CannotRun) and bool(command.parts)
            for watch in unstarted:
                if watch.state == "unstarted":
                    watch.fail(now_ns, f"the rank cannot be started: {error}", refused=refused)
        return again

    def _start_ranks(self, command: StartGang, unstarted: list[RankWatch]) -> None:
        directory = rundir.attempt_dir(self._root, command.job, command.attempt)
        whole = len(unstarted) == len(command.places)
        grants = self._grants(command)
        leader = self._spaces.get(command.places[0].node, "")
        address = launch.address_of(self._fleet, command.places[0].node)
        with spawn.reserve_port(leader) if whole else nullcontext() as bound:
            if bound is not None:
                port = launch.record_gang(directory, bound.getsockname()[1], address)
            else:
                port = launch.recorded_port(directory, starts_rank_0=unstarted[0].rank == 0)
            envs = launch.environments(command, self._fleet, port, self._name, os.environ)
            for watch in unstarted:
                port_fd = bound.fileno() if bound is not None and watch.rank == 0 else None
                grant = grants[watch.rank] if grants else None
                self._start_rank(command, watch, envs[watch.rank], grant, port_fd)

    def _start_rank(
        self,
        command: StartGang,
        watch: RankWatch,
        env: dict[str, str],
        grant: Grant | None,
        port_fd: int | None,
    ) -> None:
        limits = command.spec.limits
        if command.spec.kernels:
            env = env | injection.of_rank(watch.directory, {**os.environ, **env})
        if grant is not None:
            env = env | grant.env
            limits = grant.bound(limits)
        groups, offset_ns = watch.group.paths, self._clock.offset_ns
        orders = launch.orders_for(command, watch.rank, env, groups, offset_ns, limits)
        rundir.write_json(f"{watch.directory}/{rundir.ORDERS}", orders.as_json())
        assert watch.lock_fd is not None
        space = self._spaces.get(command.places[watch.rank].node, "")
        pid = self._spawn_warm(command, watch, port_fd, space) if command.spec.restart.warm else None
        if pid is None:
            pid = spawn.spawn_supervisor(watch.directory, watch.lock_fd, port_fd, space)
        watch.started(pid)
        self._supervisors.follow(watch)

    def _spawn_warm(
        self, command: StartGang, watch: RankWatch, port_fd: int | None, space: str
    ) -> int | None:
        if self.warm is None:
            return None
        assert watch.lock_fd is not None
        fds = [watch.lock_fd] if port_fd is None else [watch.lock_fd, port_fd]
        env = launch.common_environment(command, os.environ)
        return self.warm.spawn(command.spec.command, env, watch.directory, fds, space)

    def is_near(self, command: StartGang) -> bool:
        """Whether a warm Python for the gang is so near that its start waits for it."""
        if not command.spec.restart.warm:
            return False
        if self.imports:
            self.prepare_warm(command)
        if self.warm is None:
            return False
        return self.warm.is_near(command.spec.command, launch.common_environment(command, os.environ))

    def prepare_warm(self, command: StartGang) -> None:
        """Have a warm Python for the gang's next start."""
        if self.warm is None:  # imported here, because few jobs ask for it
            from unidle.engine.local.ranks.warm_pool import WarmPool

            self.warm = WarmPool(self.imports, _FIRST_WORTH_S) if self.imports else WarmPool()
        self.warm.prepare(command.spec.command, launch.common_environment(command, os.environ))

    def close(self) -> None:
        """End the warm Pythons."""
        if self.warm is not None:
            self.warm.close()

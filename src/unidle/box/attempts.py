"""The attempts of the job whose ranks this box holds or held, by the run directory: also those of an earlier box."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress

from unidle.boot import boot_id
from unidle.box.held_rank import HeldRank, checked_orders
from unidle.box.job_saves import JobSaves, PreparedSaves
from unidle.box.lease import BoxLease
from unidle.box.settings import BoxSettings
from unidle.box.warm_starts import WarmStarts
from unidle.engine.local.ranks import cgroups, descriptors, rundir, spawn
from unidle.engine.local.ranks.supervisors import Supervisors

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class CannotDo(Exception):
    """A command cannot be carried out; the text is the reason."""


class HeldAttempt:
    """``bound``: the port of its rank 0, kept until that is started."""

    def __init__(self, directory: str, number: int) -> None:
        self.directory = directory
        self.number = number
        self.ranks: dict[int, HeldRank] = {}
        self.bound: socket.socket | None = None

    def drop_port(self) -> None:
        if self.bound is not None:
            self.bound.close()
            self.bound = None


class HeldAttempts:
    """Starts, stops, finds and forgets ranks. Every call can be repeated: what was done is not done again."""

    def __init__(self, settings: BoxSettings, lease: BoxLease, poller: select.poll) -> None:
        self._settings, self._lease = settings, lease
        self._boot = boot_id()
        self._name = cgroups.group_name(settings.runs)
        self._parents: dict[str, str] | None = None
        self.supervisors = Supervisors(poller)
        self.saves = JobSaves(settings.job, settings.node, settings.job_directory)
        self.warm = WarmStarts(settings.job_directory)
        self._adopting = False
        self.sends_output = False
        self.by_number: dict[int, HeldAttempt] = {}

    def ranks(self) -> Iterator[HeldRank]:
        for attempt in self.by_number.values():
            yield from attempt.ranks.values()

    def adopt(self) -> None:
        """Adopt what an earlier box of the job left, running or not."""
        for name in _numbers(self._settings.job_directory, ""):
            directory = rundir.attempt_dir(self._settings.runs, self._settings.job, name)
            if os.path.exists(f"{directory}/{rundir.RELEASED}"):
                continue
            for rank in _numbers(directory, "rank"):
                self._rank(name, rank).adopted = True
        self._adopting = True
        self.warm.adopt()
        self.advance()
        while any(held.watch.behind for held in self.ranks()):
            self.advance()
        self._adopting = False

    def advance(self) -> None:
        """Take in what happened to the ranks."""
        for watch in self.supervisors.ended():
            watch.died()
        for held in self.ranks():
            watch = held.watch
            was_ended = watch.state == "ended"
            watch.advance(held.now_ns())
            self._heed(held, watch.news())
            self.supervisors.follow(watch)
            if watch.state == "ended" and not was_ended:
                self.supervisors.left(watch)
        self.supervisors.clean()
        self.saves.advance()
        self._advance_warm()

    def _advance_warm(self) -> None:
        """Start what waited for a warm Python, and have one for the next attempt."""
        for number, attempt in self.by_number.items():
            for held in attempt.ranks.values():
                if held.waiting is None:
                    continue
                try:
                    self._try(number, held)
                except OSError as error:
                    held.watch.fail(held.now_ns(), f"the rank cannot be started: {error}")
        if self.by_number:
            self.warm.advance(list(self.by_number[max(self.by_number)].ranks.values()))

    def _heed(self, held: HeldRank, news: list[tuple[int, tuple[Any, ...]]]) -> None:
        """Of new marks, which are sent from the journal, what the box itself has to do with."""
        for _, marks in news if not self._adopting else ():
            for mark in marks:
                if mark["k"] == "saved" and mark.get("text"):
                    self.saves.saved(os.path.join(held.workdir, mark["text"]))

    def prepare(self, number: int, saves: PreparedSaves | None, *, leader: bool) -> dict[str, Any]:
        """Get ready for the start of an attempt: what is done for its checkpoints, and for the leader the port of rank 0.

        Errors: CannotDo, OSError.
        """
        if saves is not None:
            self.saves.prepare(number, saves)
        found = {} if (looked := self.saves.looked(number)) is None else {"looked": looked}
        return {**found, **self._port(number)} if leader else found

    def _port(self, number: int) -> dict[str, Any]:
        attempt = self._attempt(number)
        known = self._recorded_port(attempt)
        rank_0 = attempt.ranks.get(0)
        begun = rank_0 is not None and rundir.is_claimed(rank_0.directory)
        if attempt.bound is None and not begun:
            try:
                attempt.bound = spawn.reserve_port(port=known)
            except OSError as error:
                raise CannotDo(f"port {known} of the attempt is gone: {error.strerror}") from None
        if attempt.bound is not None and not known:
            known = int(attempt.bound.getsockname()[1])
            rundir.write_json(
                f"{attempt.directory}/{rundir.GANG}", {"master_port": known, "boot": self._boot}
            )
        if not known:
            raise CannotDo("the attempt has begun, and its port is not known any more")
        return {"port": known}

    def start(self, number: int, rank: int, orders: object, *, leader: bool) -> None:
        """Start a rank that no one has begun. Errors: CannotDo; the journal then has the reason, too."""
        held = self._rank(number, rank)
        if held.feed is None:
            held.resume(0, self._first)
        held.watch.look(held.now_ns())
        self.supervisors.follow(held.watch)
        if held.watch.state != "unstarted":
            if held.watch.state == "unknown":
                raise CannotDo(f"rank {rank}: its directory cannot be locked now")
            return
        try:
            self._accept(number, held, orders, leader=leader)
            self._try(number, held)
        except (OSError, ValueError) as error:
            held.watch.fail(held.now_ns(), f"the rank cannot be started: {error}")
            raise CannotDo(f"rank {rank} cannot be started: {error}") from None

    def _accept(self, number: int, held: HeldRank, content: object, *, leader: bool) -> None:
        """Take the orders of a rank, which is started at once or waits for a warm Python. Errors: ValueError, OSError."""
        orders = checked_orders(content, held.watch.group.paths, self._boot, self._lease.path)
        held.take(orders)
        if (why := descriptors.shortage(1)) is not None:
            raise ValueError(why)
        assert isinstance(content, dict)
        self.warm.want(content.get("warm"), orders)
        attempt = self.by_number[number]
        if leader and attempt.bound is None and (port := orders.env.get("MASTER_PORT", "")).isdigit():
            attempt.bound = spawn.reserve_port(port=int(port))  # an earlier box had it
        held.waiting = (orders, leader)

    def _try(self, number: int, held: HeldRank) -> None:
        """Start a rank, unless it was stopped meanwhile, or a warm Python for it is near. Errors: OSError."""
        if held.watch.state != "unstarted":
            held.waiting = None
        elif not self.warm.is_near():
            self._spawn(number, held)

    def _spawn(self, number: int, held: HeldRank) -> None:
        assert held.waiting is not None
        (orders, leader), held.waiting = held.waiting, None
        attempt, watch = self.by_number[number], held.watch
        rundir.write_json(f"{held.directory}/{rundir.ORDERS}", orders.as_json())
        self._lease.write_now()
        assert watch.lock_fd is not None
        port_fd = attempt.bound.fileno() if leader and attempt.bound is not None else None
        fds = [watch.lock_fd] if port_fd is None else [watch.lock_fd, port_fd]
        pid = self.warm.spawn(watch.directory, fds)
        watch.started(spawn.spawn_supervisor(watch.directory, watch.lock_fd, port_fd) if pid is None else pid)
        self.supervisors.follow(watch)
        if leader:
            attempt.drop_port()  # the supervisor has it

    def stop(self, number: int, rank: int, grace_ns: int) -> None:
        """Stop a rank; one that was never begun never will be."""
        held = self._rank(number, rank)
        if held.feed is None:
            held.resume(0, self._first)
        held.watch.ask_stop(grace_ns, held.now_ns())
        self.supervisors.follow(held.watch)
        if rank == 0:
            self.by_number[number].drop_port()

    def stop_all(self) -> None:
        """Stop every rank with the grace of its orders."""
        for held in self.ranks():
            held.watch.ask_stop(held.grace_ns, held.now_ns())
            self.supervisors.follow(held.watch)
        for attempt in self.by_number.values():
            attempt.drop_port()

    def kill_all(self) -> None:
        """End every rank at once: the lease is over."""
        for held in self.ranks():
            held.watch.kill(held.now_ns())
            self.supervisors.follow(held.watch)
        for attempt in self.by_number.values():
            attempt.drop_port()

    def release(self, number: int) -> None:
        """Forget an attempt; its logs and journals stay, and nothing of it is ever started again."""
        attempt = self._attempt(number)
        if any(held.lives or held.is_behind for held in attempt.ranks.values()):
            raise CannotDo("ranks of it have not ended")
        with open(f"{attempt.directory}/{rundir.RELEASED}", "ab"):
            pass
        self.by_number.pop(number)
        self.saves.forget(number)
        attempt.drop_port()
        for held in attempt.ranks.values():
            self.supervisors.unfollow(held.watch)
            held.let_go()

    def is_released(self, number: int) -> bool:
        directory = rundir.attempt_dir(self._settings.runs, self._settings.job, number)
        return number not in self.by_number and os.path.exists(f"{directory}/{rundir.RELEASED}")

    def resume(self, number: int, known: dict[int, int], printed: dict[int, int] | None) -> None:
        """Send marks of an attempt from these ordinals on, of ranks without one from the first; and output from these bytes on."""
        attempt = self.by_number.get(number)
        for rank, held in attempt.ranks.items() if attempt else ():
            held.resume(known.get(rank, 0), None if printed is None else printed.get(rank, self._first))

    @property
    def _first(self) -> int | None:
        """From where on the hub is sent what a rank prints."""
        return 0 if self.sends_output else None

    def hush(self) -> None:
        for held in self.ranks():
            held.hush()

    def told(self, most: int) -> list[dict[str, Any]]:
        """The attempts and how many marks of each rank there are, for the hello; the newest, of ``most`` ranks in all."""
        found: list[dict[str, Any]] = []
        for number in sorted(self.by_number, reverse=True):
            ranks = self.by_number[number].ranks
            most -= len(ranks)
            if most < 0 and found:
                break
            marks = {
                str(held.rank): {"marks": held.watch.marks, "ended": held.watch.state == "ended"}
                for held in ranks.values()
            }
            found.append({"attempt": number, "ranks": marks})
        return found[::-1]

    def _attempt(self, number: int) -> HeldAttempt:
        attempt = self.by_number.get(number)
        if attempt is None:
            directory = rundir.attempt_dir(self._settings.runs, self._settings.job, number)
            with suppress(OSError):  # a full disk: each rank is lost with the reason
                os.makedirs(directory, 0o700, exist_ok=True)
            attempt = self.by_number[number] = HeldAttempt(directory, number)
        return attempt

    def _rank(self, number: int, rank: int) -> HeldRank:
        attempt = self._attempt(number)
        held = attempt.ranks.get(rank)
        if held is None:
            job = self._settings.job
            directory = rundir.rank_dir(self._settings.runs, job, number, rank)
            if self._parents is None:
                self._parents = cgroups.detect(self._name)
            groups = cgroups.group_paths(self._parents, self._name, f"{job}.{number}.{rank}")
            held = attempt.ranks[rank] = HeldRank(directory, rank, groups)
        return held

    def _recorded_port(self, attempt: HeldAttempt) -> int:
        known = rundir.read_json(f"{attempt.directory}/{rundir.GANG}") or {}
        port = known.get("master_port")
        return port if isinstance(port, int) and known.get("boot") == self._boot else 0

    def close(self) -> None:
        for attempt in self.by_number.values():
            attempt.drop_port()
            for held in attempt.ranks.values():
                held.let_go()
        self.saves.close()
        self.warm.close()
        self.supervisors.clean()


def _numbers(directory: str, prefix: str) -> list[int]:
    """The numbers after ``prefix`` in the names of a directory, in order."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    rests = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    return sorted(int(rest) for rest in rests if rest.isascii() and rest.isdigit() and len(rest) < 10)

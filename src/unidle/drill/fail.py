"""Faults in one line, for tests of jobs: the same as those of a drill file.

    from unidle.drill import fail

    fail.rank(2).at_step(40)                    # kill -9 of rank 2 when step 40 is done
    fail.rank(1).slow(1.25).at_step(20)
    fail.node("n1").cut().for_s(10).at_s(5)
    fail.link("n1", "n2").rate(mbit_per_s=2).at_step(30)
    fail.checkpoint().corrupt("flip").after_recovery()

Each chain ends with a time, which makes it a :class:`unidle.files.drill.Fault`; a list of them goes into
:class:`unidle.files.drill.Drill`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from unidle.files.drill import Fault


@dataclass(frozen=True, slots=True)
class _Draft:
    """A fault without its time."""

    _fault: Fault

    def for_s(self, seconds: float) -> _Draft:
        """Undo it after so many seconds, instead of when it was named."""
        return _Draft(replace(self._fault, for_s=seconds))

    def at_step(self, step: int) -> Fault:
        """When the job has first done this step."""
        return replace(self._fault, at_step=step)

    def at_s(self, seconds: float) -> Fault:
        """Seconds after the start of all ranks of the first attempt."""
        return replace(self._fault, at_s=seconds)

    def during_recovery(self) -> Fault:
        """While the gang comes back from the fault before."""
        return replace(self._fault, during="recovery")

    def after_recovery(self) -> Fault:
        """When the gang is past a first step again."""
        return replace(self._fault, after="recovery")


@dataclass(frozen=True, slots=True)
class _Processes(_Draft):
    """A rank or node: killed by default."""

    def kill(self) -> _Draft:
        return self

    def stop(self) -> _Draft:
        """SIGSTOP."""
        return _Draft(replace(self._fault, kind="stop"))

    def slow(self, factor: float) -> _Draft:
        """So many times slower, by a bound on its CPU time."""
        return _Draft(replace(self._fault, kind="slow", factor=factor))


@dataclass(frozen=True, slots=True)
class _Link:
    """The links of a node, or one between two."""

    _target: str

    def cut(self) -> _Draft:
        """Nothing passes."""
        return _Draft(Fault("cut", self._target))

    def delay(self, ms: float) -> _Draft:
        """All arrives later, in each direction."""
        return _Draft(Fault("delay", self._target, ms=ms))

    def rate(self, mbit_per_s: float) -> _Draft:
        """At most this passes in each direction."""
        return _Draft(Fault("rate", self._target, mbit_per_s=mbit_per_s))


@dataclass(frozen=True, slots=True)
class _Node(_Processes):
    """A node: its ranks, and its links."""

    _link: _Link

    def cut(self) -> _Draft:
        """Nothing passes to or from it."""
        return self._link.cut()

    def delay(self, ms: float) -> _Draft:
        """All arrives later, in each direction."""
        return self._link.delay(ms)

    def rate(self, mbit_per_s: float) -> _Draft:
        """At most this passes on each of its links."""
        return self._link.rate(mbit_per_s)

    def kernel_log(self, line: str) -> _Draft:
        """A line in its kernel log."""
        return _Draft(replace(self._fault, kind="kernel_log", line=line))


@dataclass(frozen=True, slots=True)
class _Device:
    _target: str

    def reads(self, field: str, value: float | bool) -> _Draft:
        """Replace a value that NVML reads of it."""
        return _Draft(Fault("nvml", self._target, field=field, value=value))

    def kernel_log(self, line: str) -> _Draft:
        """A line in the kernel log of its node."""
        return _Draft(Fault("kernel_log", self._target, line=line))


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    def corrupt(self, how: str) -> _Draft:
        """``truncate``, ``flip`` (one bit) or ``remove`` the newest one."""
        return _Draft(Fault("corrupt_checkpoint", "checkpoint", how=how))

    def disk_full(self) -> _Draft:
        """Their disk has no byte left."""
        return _Draft(Fault("disk_full", "checkpoint"))

    def disk_slow(self, bytes_per_s: int) -> _Draft:
        """Their disk takes no more than this."""
        return _Draft(Fault("disk_slow", "checkpoint", bytes_per_s=bytes_per_s))


def rank(number: int) -> _Processes:
    """A rank of the gang."""
    return _Processes(Fault("kill", f"rank:{number}"))


def node(name: str) -> _Node:
    """A declared node."""
    return _Node(Fault("kill", f"node:{name}"), _Link(f"node:{name}"))


def link(a: str, b: str) -> _Link:
    """The link between two nodes."""
    return _Link(f"link:{a}-{b}")


def device(name: str) -> _Device:
    """A device, such as ``n1/0``."""
    return _Device(f"device:{name}")


def checkpoint() -> _Checkpoint:
    """The job's newest checkpoint, and the disk that it is on."""
    return _Checkpoint()


def controller() -> _Draft:
    """SIGKILL to `unidle up`; a second later there is a new one."""
    return _Draft(Fault("controller_kill", "controller"))


def machine() -> _Draft:
    """A power cut: every process ends, what was not synced is lost; a second later `unidle up` starts in another boot."""
    return _Draft(Fault("power_cut", "machine"))

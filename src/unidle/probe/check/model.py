"""What a probe is given and what it answers: one vocabulary for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from unidle.fleet import Device, Node, Vendor
from unidle.fleet.model import FoundGpu
from unidle.fleet.nvml import Nvml
from unidle.probe.check.thresholds import ModelThresholds, Thresholds

Tier = Literal["quick", "standard", "burn-in"]
TIERS: Final[tuple[Tier, ...]] = ("quick", "standard", "burn-in")
Value = float | int | str | None


class Check(NamedTuple):
    """One line of the result. ``ok`` is None if it could not be determined; ``because`` is then the reason.

    ``threshold`` is in ``unit`` as ``value`` is; None where the value is reported and not judged.
    """

    name: str
    ok: bool | None
    value: Value
    unit: str
    threshold: Value
    because: str


class ProbeResult(NamedTuple):
    """What a probe saw."""

    checks: tuple[Check, ...]


class Absent(NamedTuple):
    """The node has nothing that the probe could check, and nothing of that kind is declared or expected."""

    because: str


Outcome = ProbeResult | Absent


class Symptom(Protocol):
    """A finding in the kernel's log, with the fields that ``unidle guard classify`` prints."""

    @property
    def kind(self) -> str: ...
    @property
    def code(self) -> int | None: ...
    @property
    def device(self) -> str | None: ...
    @property
    def role(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def because(self) -> str: ...


class LogReading(NamedTuple):
    """The kernel log since boot; ``why_not`` is the reason if it could not be read.

    ``since`` names a later time from which findings are given, such as ``the repair``. ``undated``: how many were left out
    because their lines have no date.
    """

    findings: Sequence[Symptom] = ()
    why_not: str | None = None
    since: str = ""
    undated: int = 0


FindGpus = Callable[[Path, Mapping[str, str]], Sequence[tuple[Vendor, Sequence[FoundGpu]]]]


def no_others(root: Path, environ: Mapping[str, str]) -> Sequence[tuple[Vendor, Sequence[FoundGpu]]]:  # noqa: ARG001
    """The default of ``Context.other_gpus``: no GPUs of other vendors are searched for."""
    return ()


@dataclass(frozen=True, slots=True)
class Context:
    """What all probes are given. Tests bring their own ``root`` (where ``sys``, ``proc`` and ``dev`` are) and ``nvml``.

    ``declared`` is the node's entry in the fleet file; ``bandwidth_bps`` its declared uplink in bit/s (0: not
    declared), and ``nodes`` the number of nodes in the fleet. ``known_pids`` are processes of jobs that may run there.
    ``other_gpus`` finds the GPUs of vendors other than NVIDIA, given the root and the environment.
    ``used`` are more directories whose file system is in use: their faults in the kernel's log count. They are not opened.
    ``kernel_log`` reads the log; a text is why this node has none to be read.
    ``whole_node``: limits of this process's own control groups do not count, as jobs run in other ones.
    ``damage`` is called with each matrix product before it is checked: tests break one bit by it.
    """

    node: str = "local"
    tier: Tier = "quick"
    book: ModelThresholds = field(default_factory=ModelThresholds)
    declared: Node | None = None
    nodes: int = 1
    bandwidth_bps: int = 0
    directories: tuple[Path, ...] = ()
    used: tuple[str, ...] = ()
    history: Path | None = None
    root: Path = Path("/")
    nvml: Nvml | None = None
    kernel_log: Callable[[], LogReading] | str | None = None
    other_gpus: FindGpus = no_others
    known_pids: frozenset[int] = frozenset()
    duration_s: float = 600.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    damage: Callable[[Any], None] | None = None
    whole_node: bool = False

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def limits(self, model: str | None = None) -> Thresholds:
        """Thresholds for a model of device; for the node's own (the first declared GPU's) without one."""
        return self.book.of(self.model if model is None else model)

    @property
    def model(self) -> str:
        """The model that the node is declared to have; empty for CPU devices and where nothing is declared."""
        return next((d.model for d in self.declared_gpus()), "")

    def declared_gpus(self, vendor: str | None = None) -> list[Device]:
        if self.declared is None:
            return []
        return [d for d in self.declared.devices if d.kind == "gpu" and vendor in (None, d.vendor)]


class Probe(Protocol):
    """Checks one thing. It may hang or die: it runs in a process of its own, for at most ``limit_s`` seconds.

    ``needs`` names what it opens that is costly or may hang ("nvml", "torch"): probes with the same need share
    a process. ``uses`` names what it loads; probes that load the same thing do not run at the same time, and
    none of them while those run that load nothing.
    """

    @property
    def name(self) -> str: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def needs(self) -> str: ...
    @property
    def uses(self) -> frozenset[str]: ...
    def limit_s(self, context: Context, /) -> float: ...
    def run(self, context: Context, /) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """A probe made of a function."""

    name: str
    tier: Tier
    look: Callable[[Context], Outcome]
    needs: str = ""
    uses: frozenset[str] = frozenset()
    seconds: float = 5.0

    def limit_s(self, context: Context) -> float:
        """Its share of the clock; burn-in adds what it was asked to last."""
        return self.seconds + (context.duration_s if self.tier == "burn-in" else 0.0)

    def run(self, context: Context) -> Outcome:
        return self.look(context)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What all probes found; ``absent`` are those that had nothing to look at, with the reason."""

    node: str
    checks: tuple[Check, ...]
    absent: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool | None:
        """False where one check failed, else None where one could not be determined, else True."""
        told = {check.ok for check in self.checks}
        return False if False in told else None if None in told or not told else True

    @property
    def exit_code(self) -> int:
        return {True: 0, False: 1, None: 3}[self.ok]


def unknown(name: str, because: str) -> Check:
    """A check that could not be made."""
    return Check(name, None, None, "", None, because)


def least(name: str, value: float | None, unit: str, threshold: float | None, says: str) -> Check:
    """A value that must be at least ``threshold``."""
    return _judged(name, value, unit, threshold, says, lambda v, t: v >= t)


def most(name: str, value: float | None, unit: str, threshold: float | None, says: str) -> Check:
    """A value that must be at most ``threshold``."""
    return _judged(name, value, unit, threshold, says, lambda v, t: v <= t)


def _judged(
    name: str, value: float | None, unit: str, threshold: float | None, says: str, fits: Callable[[float, float], bool]
) -> Check:  # fmt: skip
    if value is None:
        return Check(name, None, None, unit, threshold, says)
    shown = round(value, 3) if isinstance(value, float) else value
    return Check(name, threshold is None or fits(value, threshold), shown, unit, threshold, says)

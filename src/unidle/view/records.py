"""Records of the view: one measurement, notice, verdict, fault or promise."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from unidle.events.guard import IncidentKind
from unidle.events.types import OtherPod, Predicted, Use
from unidle.jobs import Reason
from unidle.ledger.taxonomy import OTHER_POD
from unidle.share.idle import Evidence


class UseView(msgspec.Struct, array_like=True, frozen=True):
    """What was measured of an attempt's devices.

    ``use`` is None until the current controller has reported it, since ``at_ns``.
    """

    use: Use | None = None
    at_ns: int = 0
    quiet_ns: int = 0  # since then every measurement found them quiet, where they are
    busy_ns: int = 0  # when they were last known to be busy
    text: str = ""


class IdleNotice(msgspec.Struct, array_like=True):
    """A notice to an idle holder (see ``unidle.events.types.IdleTold``); it stands until ``over_ns``."""

    at_ns: int
    since_ns: int
    evidence: Evidence
    notice_ns: int
    because: Reason
    over_ns: int | None = None
    over: Reason | None = None


class VerdictView(msgspec.Struct, array_like=True):
    """A problem of an attempt (see ``unidle.events.guard.VerdictReached``), until ``over_ns``."""

    at_ns: int
    kind: IncidentKind
    rank: int | None
    node: str
    onset_ns: int
    signal_ns: int
    acts: bool
    because: Reason
    over_ns: int | None = None


class FaultView(msgspec.Struct, array_like=True, frozen=True):
    """A fault of a node or device (see ``unidle.events.guard.FaultSeen``); ``jobs`` are those that it hit."""

    at_ns: int
    node: str
    device: str
    kind: str
    code: int | None
    action: str
    onset_ns: int
    signal_ns: int
    because: Reason
    jobs: list[str] = []


class WatchView(msgspec.Struct, array_like=True, frozen=True):
    """Since ``at_ns`` a detector sees a node, or cannot (see ``unidle.events.guard.WatchSet``)."""

    at_ns: int
    why_not: str = ""
    lost: int = 0


class Prediction(Predicted, array_like=True, frozen=True, kw_only=True):
    """A prediction for a job, made at ``at_ns``."""

    at_ns: int

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Value, low and high: ns, or for a cost millionths of money."""
        if self.what == "cost":
            return self.value_micro, self.low_micro, self.high_micro
        return self.value_ns, self.low_ns, self.high_ns


class TakenView(msgspec.Struct, array_like=True, frozen=True):
    """What others use of a node since ``at_ns`` (see ``unidle.events.hosts.NodeTaken``)."""

    at_ns: int
    cpu_milli: int
    memory_bytes: int
    devices: tuple[str, ...]
    because: Reason
    pods: tuple[OtherPod, ...] = ()


def users_of(taken: TakenView | None) -> dict[str, tuple[str, str]]:
    """By device, the leaf of the ledger for its time, and who uses it; empty: unknown."""
    if taken is None:
        return {}
    found = dict.fromkeys(taken.devices, ("taken", ""))
    for pod in taken.pods:
        found.update(dict.fromkeys(pod.devices, (f"others_{pod.phase}", f"{OTHER_POD}{pod.name}")))
    return found


class RankLanding(msgspec.Struct, array_like=True, frozen=True):
    """A rank got other slices at ``at_ns``: those that it had until then."""

    at_ns: int
    rank: int
    node: str
    slices: tuple[str, ...]


class Promise(msgspec.Struct, array_like=True):
    """Devices kept for a waiting job: how many of a kind on which nodes, until when."""

    kind: str
    devices: dict[str, int]
    expires_ns: int


class Removal(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """When jobs were removed, by whom, and by which limit of the fleet's retention (empty: a person removed them)."""

    at_ns: int
    by: str
    why: str = ""


class Stay(NamedTuple):
    """When a job of this load worked on a part of a device that others still have parts of."""

    job: str
    load: str
    start_ns: int
    end_ns: int

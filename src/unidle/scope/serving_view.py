"""The inference view of a profile: whether its processes serve a model, and how they do. Pure.

A tier that sees it gives, in addition to the spans of :mod:`unidle.scope.serving`, calls of kind ``model`` (bytes of the
parameters that a process's Python holds, once per look) and of kind ``machine`` (how fast the machine read its memory).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from unidle.scope.memory import size
from unidle.scope.model import Profile
from unidle.scope.serving import Percentiles, Serving, serving
from unidle.scope.serving_traffic import READS, WRITES, is_http, served, without_collectives
from unidle.words import counted

_TRAINS: Final = frozenset({"backward", "optimizer"})
_OURS: Final = READS | WRITES | {"forward"}


@dataclass(frozen=True, slots=True)
class ServingView:
    """The inference view, or why there is none."""

    serving: Serving | None
    why_not: str = ""
    model_bytes: int | None = None  # of parameters, of the processes that ran a model
    machine_bytes_s: float | None = None
    machine_is: str = ""  # "measured": read by this machine's CPUs next to the server

    def to_json(self) -> dict[str, object] | None:
        """What ``--json`` prints as ``serving``."""
        if self.serving is None:
            return None
        return self.serving.to_json() | {
            "model_bytes": self.model_bytes,
            "machine_bytes_s": self.machine_bytes_s,
            "machine_bytes_s_is": self.machine_is or None,
        }


def view_of(profile: Profile) -> ServingView:
    """The inference view of a look. There is none of processes that train: what they listen for is their own."""
    trains = {c.pid for c in profile.calls if c.kind in _TRAINS and c.count}
    spans = [s for s in profile.spans if s.kind in _OURS and s.pid not in trains]
    if any(s.pid in trains for s in profile.spans) and not any(s.kind == "forward" for s in spans):
        return ServingView(None, "it trains: the data on its connections are not requests to a model")
    if not any(s.kind in READS or s.kind in WRITES for s in spans):
        return ServingView(None, _nothing(profile))
    asked = without_collectives(spans, {c.pid for c in profile.calls if c.kind == "collective" and c.count})
    if not any(s.kind in READS or s.kind in WRITES for s in asked):
        return ServingView(None, "its connections carry its collectives, not requests to a model")
    spans = asked
    runs = {s.pid for s in spans if s.kind == "forward"}
    traffic = served(spans)
    spoken = any(is_http(events) for events in traffic.values())
    if not runs and not spoken:
        return ServingView(None, "nothing that listens speaks HTTP, and no model runs")
    if not runs and not _has_torch(profile):
        return ServingView(None, "it answers requests, but PyTorch was not seen in it")
    host, device = _parameters(profile, "host", runs), _parameters(profile, "device", runs)
    # A model on a device reads the device's memory, whose speed is not measured.
    measured = _machine_bytes_s(profile) if not device else None
    found = serving(
        spans, profile.start_ns, profile.end_ns, model_bytes=host + device or None, machine_bytes_s=measured
    )
    if not found.asked:
        return ServingView(None, "no request that came in ran a model")
    return ServingView(found, "", host + device or None, measured, "measured" if measured else "")


def view_lines(view: ServingView, width: int) -> list[str]:
    """The section of the first screen; nothing where nothing is served."""
    if view.serving is None:
        return []
    return ["Requests to the model", *(f"  {name:<10}{text}"[:width] for name, text in view_facts(view)), ""]


def view_facts(view: ServingView) -> list[tuple[str, str]]:
    """Names and values, as the first screen and the page show them."""
    it = view.serving
    if it is None:
        return []
    rows = [("requests", _requests(it)), ("tokens", _tokens(it))]
    for name, times in (("TTFT", it.ttft), ("TPOT", it.tpot), ("whole", it.whole)):
        if times is not None:
            rows.append((name, _times(times)))
    if it.forwards:
        rows.append(("model", _model(it)))
    if it.model_bytes_s is not None and view.model_bytes:
        rows.append(("memory", _memory(view, it)))
    return rows + [("note", note) for note in it.notes]


def _requests(it: Serving) -> str:
    text = (
        f"{it.asked} ({it.asked / it.seconds:.3g}/s), {it.finished} answered, {it.concurrency:.2g} at a time"
    )
    return text + (f"; {it.other} without a run of it" if it.other else "")


def _tokens(it: Serving) -> str:
    return f"{it.tokens:,} ({it.tokens_s:.3g}/s)"


def _times(times: Percentiles) -> str:
    return f"median {times.p50_ms:.4g} ms, 99th percentile {times.p99_ms:.4g} ms"


def _model(it: Serving) -> str:
    parts = [counted(it.forwards or 0, "run")]
    if it.forward_ms is not None:
        parts.append(f"median {it.forward_ms:.3g} ms")
    if it.busy_pct is not None:
        parts.append(f"busy {it.busy_pct:.0f} %")
    if it.batch is not None:
        parts.append(f"{it.batch:.2g} requests a run")
    return ", ".join(parts)


def _memory(view: ServingView, it: Serving) -> str:
    text = f"{size(view.model_bytes or 0)} of parameters, {size(round(it.model_bytes_s or 0))}/s"
    if it.bandwidth_busy_pct is None or view.machine_bytes_s is None:
        return text
    of = f"of {size(round(view.machine_bytes_s))}/s {view.machine_is}"
    return f"{text}: {it.bandwidth_busy_pct:.2g} % {of}"


def _nothing(profile: Profile) -> str:
    if profile.tier != "T0":
        return f"requests are seen in tier T0 only, this is {profile.tier}"
    return "it has no listening socket, or no request came in during the profile"


def _has_torch(profile: Profile) -> bool:
    return any(f.module.startswith("libtorch") or "/torch/" in f.file for f in profile.frames)


def _parameters(profile: Profile, where: str, pids: Iterable[int]) -> int:
    """Bytes of the processes that ran a model; a row that was united from several looks holds their sum."""
    known = set(pids)
    rows = [c for c in profile.calls if c.kind == "model" and c.name.startswith(where) and c.pid in known]
    sizes = [row.n_bytes // max(row.count, 1) for row in rows]
    # Each process runs a model of its own, or its part of one; runs are counted of all, so their mean is read.
    return round(sum(sizes) / len(sizes)) if sizes else 0


def _machine_bytes_s(profile: Profile) -> float | None:
    for row in profile.calls:
        if row.kind == "machine" and row.ns:
            return row.n_bytes * 1e9 / row.ns
    return None

"""What the two trace formats share: spans laid out so that each track nests, and what is reported about a thread as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unidle.scope.export import names
from unidle.scope.model import Profile, Span


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans of one thread, dealt to as few lanes as first-fit finds, so that in each lane every two are apart or nested.

    Each lane is sorted by start, outer spans first. Calls of a thread nest by nature; where some were dropped, or several
    threads share a track, they may cross, and trace formats would draw crossing spans wrong.
    """
    made: list[list[Span]] = []
    open_ends: list[list[int]] = []
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.end_ns)):
        end = max(span.start_ns, span.end_ns)
        k = next((k for k, ends in enumerate(open_ends) if _takes(ends, span.start_ns, end)), len(made))
        if k == len(made):
            made.append([])
            open_ends.append([])
        made[k].append(span)
        open_ends[k].append(end)
    return made


def _takes(ends: list[int], start: int, end: int) -> bool:
    """Whether a span fits into a lane whose open spans end at ``ends``, outermost first. Those that are over are taken out."""
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or ends[-1] >= end


def by_thread(spans: Iterable[Span]) -> dict[tuple[int, int], list[Span]]:
    found: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        found.setdefault((span.pid, span.tid), []).append(span)
    return found


def thread_facts(profile: Profile) -> dict[tuple[int, int], dict[str, Any]]:
    """By process and thread: times in milliseconds by state, and how often each probed function was called."""
    facts: dict[tuple[int, int], dict[str, Any]] = {
        (pid, tid): {} for pid, of_process in names.threads_of(profile).items() for tid in of_process
    }
    exact = {(thread.pid, thread.tid) for thread in profile.threads}
    for thread in profile.threads:
        times = (thread.on_ns, thread.off_ns, thread.runq_ns)
        for state, ns in zip(names.STATE_ORDER, times, strict=True):
            facts[thread.pid, thread.tid][f"{names.STATES[state]} (ms)"] = ns / 1e6
    for sample in profile.samples:
        if (sample.pid, sample.tid) not in exact:
            told = facts[sample.pid, sample.tid]
            name = f"{names.STATES[sample.state]} (ms, from samples)"
            told[name] = told.get(name, 0.0) + sample.ns / 1e6
    for call in profile.calls:
        told = facts[call.pid, call.tid]
        name = f"calls of {names.visible(call.name)}"
        told[name] = told.get(name, 0) + call.count
    return facts


def span_facts(span: Span) -> dict[str, Any]:
    return {"bytes": span.n_bytes} if span.n_bytes else {}


def steps_by_process(steps: Sequence[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for step in steps:
        found.setdefault(step.pid, []).append(step)
    return found

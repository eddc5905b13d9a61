"""Chrome's JSON trace ("Trace Event Format"): spans on the time line of their threads, for Perfetto and chrome://tracing.

Samples of a :class:`Profile` are sums and have no moments, so they are not on this time line: their flame graph is in
the other formats. Thread totals stand as an event at the end of the window.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from unidle.scope.export import names, timeline
from unidle.scope.model import Profile, Span

_OWN_TRACKS: Final = 10_000_000  # above the kernel's highest thread number (2^22)


def write(profile: Profile, *, steps: Sequence[Span] = ()) -> bytes:
    """The trace as JSON. Times are microseconds since the start of the window; ``steps`` get a track per process.

    ``otherData`` carries the quality.
    """
    told = {
        "traceEvents": list(_events(profile, steps)),
        "displayTimeUnit": "ms",
        "otherData": dict(names.quality(profile)) | {"start_utc_ns": str(profile.wall_start_ns)},
    }
    return json.dumps(told, separators=(",", ":")).encode()


def _events(profile: Profile, steps: Sequence[Span]) -> Iterator[dict[str, Any]]:
    threads, ranks = names.threads_of(profile), names.ranks_of(profile)
    for step in (*steps, *profile.spans):
        threads.setdefault(step.pid, {})
    for pid, name in _process_names(profile, threads).items():
        yield _named("process_name", pid, 0, name=name)
        if pid in ranks:
            yield _named("process_sort_index", pid, 0, sort_index=ranks[pid])
    for pid, of_process in threads.items():
        for tid, name in of_process.items():
            yield _named("thread_name", pid, tid, name=name or names.thread_label(tid, ""))
    own = _OWN_TRACKS
    for pid, of_steps in timeline.steps_by_process(steps).items():
        for lane in timeline.lanes(of_steps):
            own += 1
            yield _named("thread_name", pid, own, name="steps")
            yield _named("thread_sort_index", pid, own, sort_index=-1)
            yield from (_complete(profile, span, own) for span in lane)
    for (pid, tid), spans in timeline.by_thread(profile.spans).items():
        for k, lane in enumerate(timeline.lanes(spans)):
            track = tid
            if k:
                own += 1
                track = own
                yield _named("thread_name", pid, own, name=f"{threads[pid][tid] or tid}, calls that overlap")
            yield from (_complete(profile, span, track) for span in lane)
    end = _us(profile, profile.end_ns)
    for (pid, tid), facts in timeline.thread_facts(profile).items():
        if facts:
            yield {
                "ph": "i", "s": "t", "name": "thread totals", "cat": "scope",
                "pid": pid, "tid": tid, "ts": end, "args": facts,
            }  # fmt: skip


def _process_names(profile: Profile, threads: dict[int, dict[int, str]]) -> dict[int, str]:
    known = names.process_labels(profile)
    return {pid: known.get(pid, f"process {pid}") for pid in {**known, **threads}}


def _named(kind: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _complete(profile: Profile, span: Span, track: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "X",
        "name": names.visible(span.name) or "[unknown]",
        "cat": names.visible(span.kind) or "span",
        "pid": span.pid,
        "tid": track,
        "ts": _us(profile, span.start_ns),
        "dur": max(0, span.end_ns - span.start_ns) / 1000,
    }
    facts = timeline.span_facts(span)
    return event | ({"args": facts} if facts else {})


def _us(profile: Profile, moment_ns: int) -> float:
    return (moment_ns - profile.start_ns) / 1000

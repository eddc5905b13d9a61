"""Logs of NCCL Inspector: one JSON object a line, one collective (or send, or receive) each.

Format: https://github.com/NVIDIA/nccl, ext-profiler/inspector. An operation's own times are there only in verbose logs;
else it is known how long it took and when it was written down, which is some moment after its end.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unidle.errors import BadInput
from unidle.scope.model import Frame, Span
from unidle.scope.tiers.foreign.builder import SPANS, Builder
from unidle.scope.tiers.foreign.source import Stream, damaged

_FORMS: Final = (("coll_perf", "coll"), ("p2p_perf", "p2p"))
_LIMIT_US: Final = 9e15


def is_record(told: object) -> bool:
    """Whether an object is a line of such a log."""
    return (
        isinstance(told, dict)
        and isinstance(told.get("header"), dict)
        and any(isinstance(told.get(key), dict) for key, _ in _FORMS)
    )


def read_lines(stream: Stream) -> Builder:
    """All records. A last line without its end is left out, as the log of a living job ends so."""
    to = Builder("a log of NCCL Inspector", clock=True)
    lanes: dict[tuple[int, str], int] = {}
    exact = 0
    total = 0
    for number, line, ended in stream.lines():
        if not line.strip():
            continue
        try:
            told = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if not ended and total:
                to.notes.append("the last line, which was still being written, was left out")
                break
            raise damaged(stream.name, f"line {number} is no JSON: {error}") from None
        if not is_record(told):
            raise damaged(stream.name, f"line {number} is no record of NCCL Inspector")
        exact += _record(told, to, lanes, f"{stream.name}: line {number}")
        total += 1
    if exact < total:
        to.notes.append(
            f"{total - exact} of {total} operations have no times of their own (NCCL_INSPECTOR_DUMP_VERBOSE=1 writes "
            "them): they are drawn as if they had ended when they were written down"
        )
    to.misses.append("only NCCL's operations: no calls, no stacks, no other time")
    return to


def _record(told: dict[str, Any], to: Builder, lanes: dict[tuple[int, str], int], where: str) -> bool:
    header, metadata = told["header"], told.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    key, prefix = next(form for form in _FORMS if isinstance(told.get(form[0]), dict))
    body = told[key]
    rank = _number(header, "rank", where)
    # Logs before a job's metadata hold no pid: ranks are distinguished by their number.
    pid = int(_number(metadata, "pid", where, rank))
    took = _number(body, f"{prefix}_exec_time_us", where)
    size = int(_number(body, f"{prefix}_msg_size_bytes", where))
    times = body.get("event_trace_ts") or told.get("event_trace_ts")
    times = times if isinstance(times, dict) else {}
    start = _number(times, f"{prefix}_start_ts", where)
    end = _number(times, f"{prefix}_stop_ts", where)
    exact = 0 < start <= end
    if not exact:
        end = _number(metadata, "dump_timestamp_us", where)
        start = end - took
    name = f"nccl{body.get(prefix, 'Collective')}"
    comm = str(header.get("id", ""))
    tid = lanes.setdefault((pid, comm), -1 - sum(known == pid for known, _ in lanes))
    to.names[pid, tid] = f"NCCL {comm}".strip()
    to.ranks[pid] = int(rank)
    to.commands.setdefault(pid, str(metadata.get("hostname", "")))
    took_ns = round(took * 1000)
    to.calls[pid, tid, name, "collective"].add(took_ns, size)
    to.sample(pid, tid, to.stacks.of([Frame("device", name)]), took_ns)
    if end > 0:
        start_ns, end_ns = round(start * 1000), round(end * 1000)
        to.lasted(pid, tid, start_ns, end_ns)
        if len(to.spans) < SPANS:
            to.spans.append(Span(pid, tid, name, "collective", start_ns, end_ns, size))
        else:
            to.spans_dropped += 1
    return exact


def _number(of: dict[str, Any], key: str, where: str, other: float = 0) -> float:
    told = of.get(key, other)
    if isinstance(told, bool) or not isinstance(told, int | float) or not 0 <= told <= _LIMIT_US:
        raise BadInput(f"{key} is no number or out of range", field=where, value=told)
    return told

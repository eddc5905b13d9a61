"""How good stacks are: complete to the root, named, spliced without a mismatch, none lost; and how soon the first one comes.

One training process (PyTorch with MKL); tools look at it in turn: ours, `perf record --call-graph dwarf`, bpftrace (frame pointers), py-spy --native.
For all tools the same two figures are worked out from the stacks that they wrote (bench/_stacks.py), kernel frames left out; ours also says its own.
py-spy's stacks begin at Python's: what is compared with it is how many stacks in MKL, which has no unwind tables, keep PyTorch's frames above it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from _process import environment
from _profiled import HZ, answer, program, spied, training
from _stacks import Judged, entry_of, judged, judged_addresses, of_perf, of_profile, of_spy
from _table import Row, main

ROOTED_GOAL, SYMBOLISED_GOAL, MISMATCH_GOAL = 99.0, 95.0, 0.1
FIRST_GOAL_S = 1.0
PERF_LIMIT_S = 200
START_LIMIT_S = 60

Peers = dict[str, Judged | None]


def rows(given: argparse.Namespace) -> Iterator[Row]:
    seconds, peer_seconds, starts = (3.0, 2.0, 2) if given.quick else (given.seconds, given.peer_seconds, given.starts)  # fmt: skip
    with training("--width", str(given.width)) as target:
        firsts = [_first(target.pid) for _ in range(starts)]
        told, profile = answer(target.pid, seconds)
        peers = {name: look(target.pid, peer_seconds) for name, look in _PEERS.items()}
    quality, mine = told["quality"], judged(of_profile(profile))
    how = f"measured here, {quality['samples']} samples at {HZ} Hz of PyTorch with MKL, tier {told['tier']}"
    stacks = f"measured here, {mine.stacks} stacks at {HZ} Hz on a CPU, {mine.in_mkl} of them in MKL"
    yield from _against("stacks that reach the root", mine, lambda one: one.rooted, peers, ROOTED_GOAL, stacks, without=("py-spy --native",))  # fmt: skip
    yield from _against("stacks in MKL that keep PyTorch's frames", mine, lambda one: one.over_mkl, peers, ROOTED_GOAL, stacks)  # fmt: skip
    yield from _against("frames with a name", mine, lambda one: one.named, peers, SYMBOLISED_GOAL, stacks)
    for what, name, goal in (
        ("stacks that reach the root, by its own count", "rooted_pct", ROOTED_GOAL),
        ("frames with a name, by its own count", "symbolised_pct", SYMBOLISED_GOAL),
    ):
        yield Row(what, "%", round(quality[name], 2), goal=f">= {goal:g} %", holds=quality[name] >= goal, how=f"{how}, waiting threads and the kernel's frames too")  # fmt: skip
    wrong = quality["merge_mismatch_pct"]
    yield Row("stacks whose Python and native parts do not fit", "%", round(wrong, 3), goal="<= 0.1 %", holds=wrong <= MISMATCH_GOAL, how=how)  # fmt: skip
    yield Row("samples lost", "samples", quality["drops"], goal="0", holds=quality["drops"] == 0, how=how)
    yield from _starts(firsts)


def _against(
    what: str, mine: Judged, figure: Callable[[Judged], float | None], peers: Peers, goal: float, how: str,
    without: tuple[str, ...] = (),
) -> Iterator[Row]:  # fmt: skip
    value = figure(mine)
    if value is None:
        sys.exit(f"no stack to tell {what} of: look longer (--seconds)")
    holds, words = value >= goal, f">= {goal:g} %"
    for name, peer in peers.items():
        if name in without:
            continue
        other = figure(peer) if peer else None
        if peer is None:
            yield Row(what, "%", round(value, 2), None, f"{name}: not here", None, words, holds, how)
        elif other is not None:
            text = f"{how}; peer {peer.stacks}, {peer.in_mkl} of them in MKL"
            yield Row(what, "%", round(value, 2), round(other, 2), name, value / other if other else None, words, holds, text)  # fmt: skip


def _starts(firsts: list[tuple[float, float]]) -> Iterator[Row]:
    attach, command = zip(*firsts, strict=True)
    how = f"measured here, the slowest of {len(firsts)} looks, median {statistics.median(attach):.2f} s"
    worst = max(attach)
    yield Row("from attach to the first complete sample", "s", round(worst, 3), goal="<= 1 s", holds=worst <= FIRST_GOAL_S, how=how)  # fmt: skip
    how = f"measured here, the slowest of {len(firsts)} looks, median {statistics.median(command):.2f} s; Python's start included"
    yield Row("from the command's start to the first complete sample", "s", round(max(command), 3), how=how)


def _first(pid: int) -> tuple[float, float]:
    """Seconds to the first complete sample: since the attaching, and since the command's start."""
    begin = time.monotonic_ns()
    told, profile = answer(pid, 1.5)
    first = told["quality"]["first_sample_ns"]
    if first is None:
        sys.exit(f"tier {told['tier']} does not say when its first sample came")
    return first / 1e9, (profile["start_ns"] - begin + first) / 1e9


def _perf(pid: int, seconds: float) -> Judged | None:
    perf = program("perf")
    if perf is None:
        return None
    with tempfile.TemporaryDirectory(prefix="unidle-perf-") as place:
        data = str(Path(place) / "perf.data")
        record = [perf, "record", "-q", "-e", "cpu-clock", "-F", str(HZ), "--call-graph", "dwarf,32768"]
        done = _done(
            [*record, "-p", str(pid), "-o", data, "--", "sleep", str(seconds)], seconds + START_LIMIT_S
        )
        if done is None:
            return None
        shown = _done([perf, "script", "-i", data, "--no-inline", "-F", "tid,ip,sym,dso"], PERF_LIMIT_S)
    return None if shown is None else _sound("perf", judged(of_perf(shown)))


def _bpftrace(pid: int, seconds: float) -> Judged | None:
    """Only whether its stacks reach the root: it needs many minutes for the names of PyTorch's functions, so they are switched off."""
    bpftrace = program("bpftrace")
    if bpftrace is None:
        return None
    text = f"profile:hz:{HZ} /pid == {pid}/ {{ @[ustack(127)] = count(); }} interval:s:{seconds:.0f} {{ exit(); }}"
    shown = _done([bpftrace, "-e", text], seconds + START_LIMIT_S, BPFTRACE_NO_USER_SYMBOLS="1")
    return None if shown is None else _sound("bpftrace", judged_addresses(shown, entry_of(pid)))


def _spy(pid: int, seconds: float) -> Judged | None:
    if program("py-spy") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="unidle-spy-") as place:
        out = Path(place) / "raw"
        # Each second of its samples is another to it; without --idle only threads on a CPU are there.
        command = [word for word in spied(pid, seconds, out, native=True) if word != "--idle"]
        done = _done(command, seconds + START_LIMIT_S)
        return None if done is None else _sound("py-spy", judged(of_spy(out.read_text())))


_PEERS: dict[str, Callable[[int, float], Judged | None]] = {
    "perf dwarf": _perf,
    "bpftrace, frame pointers": _bpftrace,
    "py-spy --native": _spy,
}


def _sound(name: str, found: Judged) -> Judged | None:
    if not found.stacks:
        print(f"{name} wrote no stacks: skipped", file=sys.stderr)
    return found if found.stacks else None


def _done(command: list[str], limit_s: float, **env: str) -> str | None:
    """What a peer printed; nothing where it failed, which is reported."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, env=environment(**env))  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{Path(command[0]).name} took more than {limit_s:.0f} s: skipped", file=sys.stderr)
        return None
    if done.returncode != 0:
        print(f"{Path(command[0]).name} failed: skipped: {done.stderr.strip()[:200]}", file=sys.stderr)
        return None
    return done.stdout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--peer-seconds", type=float, default=4.0, help="perf needs a minute to work them out"
    )
    parser.add_argument("--starts", type=int, default=5, help="short looks for the first sample's time")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--quick", action="store_true", help="shorter looks, to try it")


if __name__ == "__main__":
    main("profile_quality", rows, add_arguments)

"""Profiles made by hand."""

from __future__ import annotations

from unidle.scope.model import Call, Frame, Process, Profile, Quality, Sample, Span, Thread

S = 1_000_000_000


def profile(
    *stacks: tuple[str, int],
    pid: int = 10,
    start_s: float = 0,
    seconds: float = 2,
    spans: int = 0,
    rank: int | None = None,
) -> Profile:
    """One thread on a CPU: by folded stack the milliseconds."""
    start_ns, end_ns = int(start_s * S), int((start_s + seconds) * S)
    frames = list(dict.fromkeys(name for folded, _ in stacks for name in folded.split(";")))
    samples = tuple(Sample(pid, pid, k, "on", ms // 10, ms * 1_000_000) for k, (_, ms) in enumerate(stacks))
    on_ns = sum(s.ns for s in samples)
    return Profile(
        "T0", start_ns, end_ns,
        tuple(Frame("python", name, "train.py", 1) for name in frames),
        tuple(tuple(frames.index(name) for name in folded.split(";")) for folded, _ in stacks),
        samples,
        (Thread(pid, pid, "python", on_ns, end_ns - start_ns - on_ns, 0, start_ns, end_ns),),
        (Process(pid, "python", 1, "3.11", rank),),
        (Call(pid, pid, "aten::add", "operator", 5, 100, stack=0),) if stacks else (),
        tuple(Span(pid, pid, "step", "optimizer", start_ns + k * 10, start_ns + k * 10 + 5) for k in range(spans)),
        quality=Quality(samples=sum(s.count for s in samples)),
        wall_start_ns=1_700_000_000 * S + start_ns,
    )  # fmt: skip


def times(made: Profile) -> dict[str, int]:
    """Milliseconds by folded stack."""
    found: dict[str, int] = {}
    for s in made.samples:
        name = ";".join(frame.function for frame in made.stack(s.stack))
        found[name] = found.get(name, 0) + s.ns // 1_000_000
    return found

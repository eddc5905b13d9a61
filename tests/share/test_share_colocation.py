"""Slow-downs are read off the ledger's rows of steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from unidle.fleet import CutMode
from unidle.ledger.columns import LEAVES, RowColumns, from_entries
from unidle.ledger.rows import Entry
from unidle.ledger.tables import JobInfo, SliceInfo
from unidle.ledger.taxonomy import GROUP_OF
from unidle.share.colocation import Observation, PairedSteps, Work

SLICES = [SliceInfo(f"n/0#{k}", "n/0", "n", 500_000, 0, 10**9) for k in range(2)]
LOADS = {"a": "small-inference", "b": "llm-decode"}


def steps(
    job: str, piece: int, start: int, count: int, each: int, first: int = 0, skip: int = 1
) -> list[Entry]:
    """``count`` rows of ``skip`` steps that take ``each``."""
    return [
        Entry(
            (piece,),
            start + k * each * skip,
            start + (k + 1) * each * skip,
            "useful",
            job,
            1,
            first + (k + 1) * skip,
        )
        for k in range(count)
    ]


def observations(
    seen: RowColumns, load_of: Mapping[str, str], mode_of: Mapping[str, CutMode]
) -> tuple[Observation, ...]:
    """What rows show: work that the ledger only infers is company, too."""
    works = [GROUP_OF[leaf] in ("step", "serve", "fill") for leaf in LEAVES]
    found: dict[str, dict[str, Work]] = defaultdict(lambda: defaultdict(Work))
    names = ("slice", "start_ns", "end_ns", "leaf", "job", "step")
    for piece, start, end, leaf, job, step in zip(*(seen[name].tolist() for name in names), strict=True):
        device = seen.slices.names.devices[piece]
        if works[leaf] and job and device in mode_of:
            tenant = found[device][seen.jobs[job].id]
            tenant.work.append((start, end))
            if step >= 0:
                tenant.steps[start, end] = step
    pairs = PairedSteps(load_of)
    for device, tenants in found.items():
        pairs.add(tenants, mode_of[device], tenants.keys() & load_of.keys())
    return pairs.observations()


def rows(*parts: list[Entry]) -> RowColumns:
    return from_entries([e for part in parts for e in part], SLICES, [JobInfo("a"), JobInfo("b")])


def test_a_job_is_compared_with_itself_alone_and_beside_the_other() -> None:
    both = rows(
        steps("a", 0, 0, 10, 100), steps("a", 0, 1_000, 10, 180, first=10), steps("b", 1, 1_000, 20, 100)
    )
    assert observations(both, LOADS, {"n/0": "mps"}) == (
        Observation("a", "mps", "small-inference", "llm-decode", 100, 180, 10),
    )


def test_rows_of_several_steps_count_by_the_step() -> None:
    both = rows(
        steps("a", 0, 0, 10, 100, skip=5),
        steps("a", 0, 5_000, 10, 150, first=50, skip=5),
        steps("b", 1, 5_000, 100, 75),
    )
    (seen,) = observations(both, LOADS, {"n/0": "time"})
    assert (seen.mode, seen.alone_ns, seen.shared_ns) == ("time", 100, 150)


def test_steps_that_are_shared_only_in_part_say_nothing() -> None:
    gaps = [e for e in steps("b", 1, 1_000, 20, 90) if e.step % 2]
    both = rows(steps("a", 0, 0, 10, 100), steps("a", 0, 1_000, 10, 180, first=10), gaps)
    assert observations(both, LOADS, {"n/0": "mps"}) == ()


def test_few_steps_unknown_loads_and_whole_devices_say_nothing() -> None:
    both = rows(steps("a", 0, 0, 5, 100), steps("a", 0, 500, 10, 180, first=5), steps("b", 1, 500, 20, 100))
    assert observations(both, LOADS, {"n/0": "mps"}) == ()  # the first row's number of steps is not known
    more = rows(steps("a", 0, 0, 9, 100), steps("a", 0, 900, 9, 180, first=9), steps("b", 1, 900, 20, 100))
    assert len(observations(more, LOADS, {"n/0": "mps"})) == 1
    assert observations(more, {"a": "notebook"}, {"n/0": "mps"}) == ()
    unknown = rows(steps("a", 0, 0, 9, 100), steps("a", 0, 900, 9, 180, first=9), steps("b", 1, 0, 27, 100))
    assert observations(unknown, {"a": "notebook"}, {"n/0": "mps"}) == ()  # it was never alone
    assert observations(more, LOADS, {}) == ()

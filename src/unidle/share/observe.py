"""What the ledger saw of work that shares a GPU: how long steps took alone, and next to one other.

Only steps that were seen count (rows with a step number); see ``share.colocation``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from unidle.ledger.columns import LEAVES, RowColumns
from unidle.ledger.taxonomy import GROUP_OF
from unidle.share.colocation import Observation, PairedSteps, Work
from unidle.share.interference import Interference
from unidle.share.modes import Mode


def observations(
    rows: RowColumns, load_of: Mapping[str, str], mode_of: Mapping[str, Mode]
) -> tuple[Observation, ...]:
    """What ``rows`` (that stand, in order of slice and time) show, in the order of jobs.

    ``load_of`` names the load of each job, ``mode_of`` how each device was cut; others are passed over, but a job
    of unknown load is company all the same.
    """
    pairs = PairedSteps(load_of)
    for device, tenants in _by_device(rows, mode_of).items():
        pairs.add(tenants, mode_of[device], tenants.keys() & load_of.keys())
    return pairs.observations()


def learn(table: Interference, seen: Iterable[Observation]) -> Interference:
    """The table with every observation added; each counts once, however many steps it is of."""
    for o in seen:
        table = table.observed(o.mode, o.load, o.other, o.alone_ns, o.shared_ns)
    return table


def _by_device(rows: RowColumns, mode_of: Mapping[str, Mode]) -> dict[str, dict[str, Work]]:
    """What each job did on each device; work that the ledger only infers is company too."""
    work = [GROUP_OF[leaf] in ("step", "serve", "fill") for leaf in LEAVES]
    devices = rows.slices.names.devices
    found: dict[str, dict[str, Work]] = defaultdict(lambda: defaultdict(Work))
    names = ("slice", "start_ns", "end_ns", "leaf", "job", "step")
    for piece, start, end, leaf, job, step in zip(*(rows[n].tolist() for n in names), strict=True):
        if work[leaf] and job and devices[piece] in mode_of:
            tenant = found[devices[piece]][rows.jobs[job].id]
            tenant.work.append((start, end))
            if step >= 0:
                tenant.steps[start, end] = step
    return found

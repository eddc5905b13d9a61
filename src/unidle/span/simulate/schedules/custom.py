"""A schedule of the user's own: lists of what each stage does, checked, as a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unidle.errors import BadInput
from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program
from unidle.span.simulate.schedules.base import Schedule, Try, everything

Lists = Sequence[Sequence[tuple[str, int]]]


def own(name: str, make: Callable[[Setting], Lists]) -> Schedule:
    """``make`` as a schedule. What it returns is checked when it is chosen.

    Gradients leave at the end of ``B``; a ``B`` without an ``R`` right before it has its activations kept from ``F``
    on. Errors, when chosen: :class:`unidle.errors.BadInput`.
    """

    def choose(setting: Setting, _attempt: Try) -> Program:
        return program_of(setting, name, make(setting))

    return Schedule(name, choose)


def program_of(setting: Setting, name: str, lists: Lists) -> Program:
    """The lists as a program."""
    stages, count = len(setting.stages), setting.microbatches
    if len(lists) != stages:
        raise _bad(name, f"gives {len(lists)} of {stages} stages", "return one list for each stage")
    order = np.zeros((stages, 2 * count), dtype=np.int64)
    after = np.zeros((stages, 2 * count), dtype=np.int64)
    again = ~everything(setting)
    for stage, steps in enumerate(lists):
        _stage(name, stage, steps, count, order[stage], after[stage], again[stage])
    return Program(name, order, again, after, early=True, max_flows=not setting.one_flow)


def _stage(
    name: str, stage: int, steps: Sequence[tuple[str, int]], count: int,
    order: np.ndarray[tuple[int, ...], np.dtype[np.int64]], after: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    again: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> None:  # fmt: skip
    done: dict[str, list[int]] = {op: [] for op in "FRBW"}
    at, made = 0, -1
    for op, microbatch in steps:
        where = f"stage {stage}: {op}{microbatch}"
        if op not in done or not 0 <= microbatch < count:
            raise _bad(
                name, f"{where} is none of F, B, W and R of microbatches 0 to {count - 1}", "leave it out"
            )
        if microbatch in done[op]:
            raise _bad(name, f"{where} comes twice", "leave one out")
        if made >= 0 and (op, microbatch) != ("B", made):
            raise _bad(name, f"{where} comes between R{made} and B{made}", "put R right before its B")
        if op != "F" and microbatch not in done["F" if op in "RB" else "B"]:
            raise _bad(name, f"{where} comes before what it needs", "F, then B, then W of a microbatch")
        if op == "W" and microbatch != done["B"][len(done["W"])]:
            raise _bad(name, f"{where} is not the oldest that waits", "let W follow the order of B")
        made = microbatch if op == "R" else -1
        done[op].append(microbatch)
        if op == "R":
            again[microbatch] = True
        elif op == "W":
            after[at - 1] += 1
        else:
            order[at] = microbatch + (count if op == "B" else 0)
            at += 1
    for op in "FBW":
        if len(done[op]) != count:
            raise _bad(
                name,
                f"stage {stage}: {op} of {len(done[op])} of {count} microbatches",
                "each needs F, B and W",
            )


def _bad(name: str, problem: str, remedy: str) -> BadInput:
    return BadInput(problem, field="schedule", value=name, remedy=remedy)

"""``unidle fill proof``: whether fillers changed the training of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from unidle.cli.common import (
    JobArgument,
    JsonOption,
    StoreOption,
    data_dir,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
)
from unidle.engine.local.ranks.rundir import FILLS
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.predict.block_pairs import SlowDown

_LOSS: Final = re.compile(
    r"\b(?:step|iteration|iter)\W{0,3}(\d+)\b.*?\bloss\W{0,3}([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))",
    re.IGNORECASE,
)


def proof(
    job: JobArgument = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="JOB", show_default=False, help="The same training without fillers, whose losses are compared."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show whether fillers changed the training of a job.

    How much slower its steps were, with a 95 % interval, and whether its losses are the same to the bit.

    The interval is from pairs of blocks of steps in random order, with and without fillers, in the same run.
    """
    from unidle.control.store_files import state_dir
    from unidle.predict.block_pairs import BlockPair, slow_down

    opened = read_store(store)
    view = read_view(opened)
    filled = need_job(view, job)
    state = state_dir(opened, data_dir())
    records = _records_of(state, filled.id)
    pairs = [
        BlockPair(each["filled_ns"], each["unfilled_ns"], each["first"])
        for each in records
        if each["kind"] == "pair"
    ]
    found = slow_down(pairs)
    steps, equal = 0, None
    if against is not None:
        steps, equal = _compared(losses_of(state, filled.id), losses_of(state, need_job(view, against).id))
    if as_json:
        print_json(_as_object(found, equal))
    else:
        _show(found, steps, equal, against, records)


def _records_of(state: Path, job: str) -> list[dict[str, Any]]:
    found = list(_records(state / "runs" / job / FILLS))
    if not found:
        raise BadInput(
            "has no fillers", field="JOB", value=job, remedy="`unidle fill run FILE --job JOB` starts them"
        )
    return found


def _as_object(found: SlowDown, equal: bool | None) -> dict[str, Any]:
    return {
        "slowdown_pct": found.mean_pct if found.known else None, "low": found.low_pct, "high": found.high_pct,
        "pairs": found.pairs, "loss_equal": equal,
    }  # fmt: skip


def _show(
    found: SlowDown, steps: int, equal: bool | None, against: str | None, records: list[dict[str, Any]]
) -> None:
    if found.low_pct is None:
        say(f"Slow-down of training: not known, from {found.pairs} pairs of blocks.")
    else:
        interval = f"{found.low_pct:.2f} to {found.high_pct:.2f} % (95 %), from {found.pairs} pairs of blocks"
        say(
            f"Slow-down of training: {found.mean_pct:.2f} %, {interval}."
            if found.known
            else f"Slow-down of training: not known yet; {interval}."
        )
    if equal is None:
        say(
            "Losses: not compared."
            if against is None
            else "Losses: not known; the jobs have no step with a loss in common."
        )
    else:
        say(f"Losses of {steps:,} steps: {'equal to the bit' if equal else 'NOT equal'}.")
    ends = [each for each in records if each["kind"] == "end"]
    filled, waited = (sum(each[word] for each in ends) for word in ("filled_ns", "waited_ns"))
    if waited:
        lost = sum(each["discarded_ns"] for each in ends)
        left = max(waited - filled - lost, 0)
        say(
            f"Waits: {waited / 1e9:.2f} s; {100 * filled / waited:.1f} % useful work of fillers, {100 * lost / waited:.1f} % discarded,"
            f" {100 * left / waited:.1f} % left."
        )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:  # a torn line
            continue
        if isinstance(found, dict) and "kind" in found:
            yield found


def losses_of(state: Path, job: str) -> dict[int, str]:
    """By step, as written: of a span run what its ranks recorded, in full; of others what they printed next to the number of a step."""
    found: dict[int, str] = {}
    for path in sorted((state / "span" / job).glob("out-*/*.jsonl")):
        for record in _records(path):
            if record["kind"] == "step" and "loss" in record:
                found[int(record["step"])] = repr(record["loss"])
    for path in () if found else sorted((state / "runs" / job).glob("*/rank*/log*")):
        if path.suffix == ".times":
            continue
        with path.open(errors="replace") as lines:
            for line in lines:
                if (match := _LOSS.search(line)) is not None:
                    found[int(match[1])] = match[2]
    return found


def _compared(one: dict[int, str], other: dict[int, str]) -> tuple[int, bool | None]:
    """How many steps both have, and whether all their losses are equal; None without any."""
    both = one.keys() & other.keys()
    return len(both), all(one[step] == other[step] for step in both) if both else None

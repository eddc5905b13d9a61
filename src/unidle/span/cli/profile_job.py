"""``unidle span profile JOB``: what the stages of a job of ``unidle span run`` take, from what its ranks wrote."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unidle.cli.common import data_dir, figures, print_json, say, show_table
from unidle.errors import BadInput, CannotRun
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.model.layers import Median, StageTimes

PACED = "Devices were paced: these times are the file's, where it was not slower than that."


def place_of(job: str, store: str | None) -> Path | None:
    """The directory of a job of ``unidle span run``; None without one of this name."""
    if store is not None:
        from unidle.control.store_files import run_root
        from unidle.store.open import open_store

        opened = open_store(store, create=False)
        try:
            found = [run_root(opened, data_dir()).parent / "span" / job]
        finally:
            opened.close()
    else:
        found = [directory / "span" / job for directory in (data_dir() / "span").glob("*.d")]
    return next((path for path in found if path.is_dir()), None)


def profile_job(job: str, place: Path, write: str | None, *, as_json: bool) -> None:
    """Print the stages of the newest attempt with steps, and store them in the file ``write``. Errors: BadInput,
    CannotRun.
    """
    attempt, plan, stages = _newest(job, place)
    paced = plan.get("pace") is not None
    if write is not None:
        _storable(job, stages, paced)
        from unidle.span.files.rewrite import store_stages

        store_stages(write, stages)
    if as_json:
        told = [{**asdict(each), **{name: _told(getattr(each, name)) for name in _TIMES}} for each in stages]
        print_json({"job": job, "attempt": attempt, "paced": paced, "stages": told, "how": "measured"})
        return
    say(f"{job}, attempt {attempt}, {plan['model']['dtype']}, {counted(plan['microbatch'], 'sequence')}")
    header = ["stage", "site", "layers", "forward ms", "input grad ms", "weights ms", "recompute ms", "± %", "sends MB", "samples"]  # fmt: skip
    show_table(header, [_line(each) for each in stages])
    say()
    if any(each.joined for each in stages):
        say("Both parts of the backward pass ran as one here: input grad is both.")
    if paced:
        say(PACED)
    say(
        "All figures are measured while the job ran: medians of a microbatch; ± is the half of the 95 % interval."
    )
    if write is not None:
        say(f"{write}: times of {counted(len(stages), 'stage')} stored")


_TIMES = ("forward", "backward", "weight", "recompute")


def _newest(job: str, place: Path) -> tuple[int, dict[str, Any], list[StageTimes]]:
    from unidle.span.model.layers import stage_times
    from unidle.span.rank.records import RecordReader

    numbers = sorted((int(path.stem.rpartition("-")[2]) for path in place.glob("plan-*.json")), reverse=True)
    for number in numbers:
        plan = json.loads((place / f"plan-{number}.json").read_text())
        names = tuple(str(device["device"]) for device in plan["devices"])
        records = ((record.device, record.body) for record in RecordReader(place, number, names).poll())
        stages = stage_times(plan, records)
        if all(each.forward is not None for each in stages):
            return number, plan, stages
    raise CannotRun(f"{job} has completed no step on this host yet", remedy="try again after its first step; with --site, use the host that started the stage")  # fmt: skip


def _storable(job: str, stages: list[StageTimes], paced: bool) -> None:
    if paced:
        raise BadInput(
            "its devices were paced by the file that it ran from", field="--write", value=job,
            remedy="run it without train.pace",
        )  # fmt: skip
    if any(each.joined for each in stages):
        raise BadInput(
            "its schedule runs both parts of the backward pass as one", field="--write", value=job,
            remedy="run it with --schedule zb-h1 or unidle, which measure them apart",
        )  # fmt: skip


def _told(found: Median | None) -> dict[str, int] | None:
    return None if found is None else found._asdict()


def _line(each: StageTimes) -> list[str]:
    times = [getattr(each, name) for name in _TIMES]
    known = [time for time in times if time is not None]
    whole = sum(time.value for time in known)
    spread = 50 * sum(time.high - time.low for time in known) / whole if whole else 0.0
    layers = ", ".join(f"{first}-{end - 1}" for first, end in each.layers)
    return [
        str(each.stage), each.site, layers or "-", *("-" if t is None else f"{t.value / 1e6:.3f}" for t in times),
        f"{spread:.1f}", "-" if each.sends_bytes is None else figures(each.sends_bytes / 1e6), str(each.microbatches),
    ]  # fmt: skip

"""Commands to the engine from the view, and events from what the engine found. Pure."""

from __future__ import annotations

from pathlib import Path

from unidle.engine.protocol import CheckpointLook, LiveAttempt, PartOf, StartGang
from unidle.events import types as ev
from unidle.fleet import device_of
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View
from unidle.words import counted, does


def start_of(view: View, job: JobView, attempt: AttemptView) -> StartGang:
    """The command that starts an attempt, with what its parts of devices are."""
    parts = {}
    if view.cuttable_nodes():
        ids = [slice_id for place in attempt.places for slice_id in place.slices]
        parts = {slice_id: part for slice_id in ids if (part := _part(view, slice_id)) is not None}
    if job.spec.checkpoint_path is None or view.modelled:
        return StartGang(job.id, attempt.number, job.spec, attempt.places, parts)
    from unidle.guard.mttf import rates_of  # only where the job saves

    rates = rates_of(view, job)
    return StartGang(job.id, attempt.number, job.spec, attempt.places, parts, rates.mttf_s, rates.restart_s)


def live_attempt(view: View, job: JobView, attempt: AttemptView) -> LiveAttempt:
    """The attempt as an engine adopts it."""
    command = start_of(view, job, attempt)
    return LiveAttempt(command, tuple(r.count for r in attempt.ranks), tuple(r.ended for r in attempt.ranks))


def _part(view: View, slice_id: str) -> PartOf | None:
    device = view.cuttable(device_of(slice_id))
    if device is None or device.cut is None:
        return None
    name = slice_id.partition("#")[2]
    part = next((p for p in device.cut.parts if p.name == name), None)
    return None if part is None else PartOf(device.id, device.cut.mode, part)


def left(view: View, attempt: AttemptView) -> list[ev.DeviceCut]:
    """The cuts of devices that an attempt, which has ended, had parts of: what it left joins the rest."""
    if not view.cuttable_nodes():
        return []
    gone: dict[str, set[str]] = {}
    for slice_id in (s for place in attempt.places for s in place.slices):
        if _part(view, slice_id) is not None:
            gone.setdefault(device_of(slice_id), set()).add(slice_id)
    return [cut for name, slices in gone.items() if (cut := _without(view, name, slices)) is not None]


def _without(view: View, device_id: str, gone: set[str]) -> ev.DeviceCut | None:
    from unidle.share.parts import without_parts  # not needed where nothing is cut

    device = view.cuttable(device_id)
    if device is None:
        return None
    cut = without_parts(device, gone)
    users = sum(bool(part.job) for part in cut.parts)
    text = (
        f"{counted(users, 'other')} still {does(users, 'use')} it: the part joins the free rest"
        if users
        else "the device is unused: it is whole again"
    )
    return ev.DeviceCut(device_id, cut, Reason("part_left", text, {"users": users}))


def bad_checkpoint(seen: CheckpointLook) -> ev.CheckpointBad:
    """The event for a checkpoint that was found bad."""
    text = f"checkpoint {Path(seen.path).name} is bad: {seen.because}"
    if seen.moved_to:
        text += f"; moved to {seen.moved_to}"
    return ev.CheckpointBad(seen.job, seen.attempt, seen.path, Reason("checkpoint_bad", text), seen.step)

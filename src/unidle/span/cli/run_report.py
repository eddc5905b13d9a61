"""How a run over sites ended: figures next to those of its model, pictures, and what was lost of the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from unidle.cli.common import figures, print_json, say, show, show_table, warn

if TYPE_CHECKING:
    from unidle.cli.run import Signals
    from unidle.span.replan.observed import SpanAttempt
    from unidle.span.run.coordinator import Coordinator
    from unidle.span.run.gang import SpanGang
    from unidle.view.jobs import JobView

_STRIPS: Final = 12


class RunEnd:
    """A run that has ended."""

    def __init__(
        self, coordinator: Coordinator, job: JobView, gang: SpanGang, store: str, interrupted: bool
    ) -> None:
        self.coordinator, self.job, self.store = coordinator, job.id, store
        self.state = job.state
        self.attempts = [coordinator.attempts[n] for n in sorted(coordinator.attempts)]
        self.place = gang.place
        self.code = 130 if interrupted else coordinator.error.exit_code if coordinator.error else 1
        self.why = _why(coordinator, job, gang)

    @property
    def last(self) -> SpanAttempt:
        return self.attempts[-1]


def _why(coordinator: Coordinator, job: JobView, gang: SpanGang) -> str:
    """Why it did not succeed, in one sentence; empty where it did."""
    if job.state == "succeeded":
        return ""
    if coordinator.error is not None:
        return coordinator.error.line()
    for attempt in reversed(coordinator.attempts.values()):
        for device in attempt.devices:
            end = attempt.ends.get(device, {})
            if end.get("why") not in (None, "done", "stopped") and end.get("because"):
                return f"{device}: {end['because']}"
    if job.attempts:
        for rank, seen in enumerate(job.attempts[-1].ranks):
            if seen.failed and (said := gang.said(job.attempts[-1].number, rank)):
                return said
    return job.because.text if job.because else job.state


def interrupted(signals: Signals, gang: SpanGang, job: JobView) -> bool:
    """Ends the job at a signal; always False."""
    if signals.interrupts + signals.terminates and job.cancel_by is None:
        gang.cancel("Ctrl-C" if signals.interrupts else "SIGTERM")
    elif signals.interrupts > 1:
        gang.cancel("Ctrl-C", at_once=True)
    return False


def write_pictures(done: RunEnd, gantt: str | None, perfetto: str | None) -> None:
    from unidle.cli.output import whole_file
    from unidle.span.cli.output import picture_of, write_svg
    from unidle.span.cli.trace import write_timelines

    measured = measured_picture(done)
    simulation = done.last.simulation
    if gantt is not None:
        with whole_file(gantt, "--gantt") as stream:
            write_svg(stream, [picture for picture in (measured, picture_of(simulation)) if picture])
    if perfetto is not None:
        timelines = [("modelled", simulation.rows())]
        if measured is not None:
            timelines.insert(0, ("measured", iter(measured.rows)))
        with whole_file(perfetto, "--perfetto") as stream:
            write_timelines(stream, timelines)


def measured_picture(done: RunEnd) -> Any:
    """A step of the middle, from its begin on; None where none was measured."""
    from unidle.span.cli.output import Picture

    steps = [step for step in done.last.steps.values() if step.rows and step.took_ns]
    if not steps:
        return None
    step = sorted(steps, key=lambda one: one.took_ns)[len(steps) // 2]
    begin = step.begin_ns
    rows = [row._replace(start_ns=row.start_ns - begin, end_ns=row.end_ns - begin) for row in step.rows]
    rows.sort(key=lambda row: row.start_ns)
    title = f"step {step.number}: {step.took_ns / 1e6:.6g} ms, measured"
    return Picture(title, list(done.last.devices), rows, step.end_ns - begin)


def report(done: RunEnd, others: dict[str, Any], *, as_json: bool) -> None:
    """Measured and modelled, as a table or for machines."""
    from unidle.span.replan.observed import summary

    simulation = done.last.simulation if done.attempts else None
    if simulation is None:
        if not as_json:
            warn(done.why)
            return
        print_json({"state": done.state, "because": done.why})
        return
    told, model = summary(simulation.setting, done.last.steps.values()), simulation.result
    off = None if told.step_ns is None else 100 * (told.step_ns / model.iteration_ns - 1)
    if as_json:
        print_json({
            "job": done.job, "state": done.state, "because": done.why or None, "store": done.store, "schedule": model.schedule,
            "attempts": len(done.attempts), "steps": told.steps, "shares": shares_of(done),
            "step_ns": {"measured": told.step_ns, "modelled": model.iteration_ns, "difference_percent": off},
            "busy": {"measured": told.busy, "modelled": model.utilisation},
            "exposed_wan_ns": {"measured": told.exposed_wan_ns, "modelled": model.exposed_wan_ns},
            "link_bytes": told.link_bytes, "link_use": told.link_use, "losses": losses(done), "compare": others,
            "replanned": done.coordinator.changes,
        })  # fmt: skip
        return
    _show(done, told, model, off)
    for mode, found in others.items():
        say()
        say(f"{mode}: {found['text']}")
        if mode == "single":
            _curves(losses(done), found["losses"])
    say()
    if done.why:
        warn(done.why)
    say(
        f"{done.job} {done.state} after {len(done.attempts)} attempt{'s' if len(done.attempts) > 1 else ''}; where its time went: unidle ledger --store {done.store}"
    )


def shares_of(done: RunEnd) -> list[dict[str, Any]]:
    """What each pipeline did, and after which step it began with that."""
    from unidle.span.simulate.uneven import microbatches_of

    found: list[dict[str, Any]] = []
    for attempt in done.attempts:
        counts = list(microbatches_of(attempt.simulation))
        if not found or found[-1]["microbatches"] != counts:
            found.append({"after_step": attempt.resumed, "microbatches": counts})
    return found


def _curves(ours: dict[str, float], theirs: dict[str, float], most: int = 8) -> None:
    """Both losses of a few steps, from the first to the last."""
    shared = [step for step in ours if step in theirs]
    chosen = (
        [shared[k * (len(shared) - 1) // max(most - 1, 1)] for k in range(most)]
        if len(shared) > most
        else shared
    )
    rows = [[step, f"{ours[step]:.9f}", f"{theirs[step]:.9f}"] for step in chosen]
    show_table(["step", "loss here", "in one process"], rows)


def losses(done: RunEnd) -> dict[str, float]:
    """By step: of the attempt that did it last."""
    found = {step.number: step.loss for attempt in done.attempts for step in attempt.steps.values()}
    return {str(number): loss for number, loss in sorted(found.items()) if loss is not None}


def _show(done: RunEnd, told: Any, model: Any, off: float | None) -> None:
    from unidle.span.cli.output import picture_of, strip_of

    measured = measured_picture(done)
    say()
    if measured is not None:
        simulation = done.last.simulation
        modelled = picture_of(simulation)._replace(devices=measured.devices)
        length = max(measured.length_ns, modelled.length_ns)
        for picture in (measured, modelled):
            for line in strip_of(picture._replace(devices=picture.devices[:_STRIPS]), scale_ns=length):
                show(line)
        say()
    if told.step_ns is None:
        say("no step was measured")
        return
    rows = [
        ["step ms", figures(told.step_ns / 1e6), figures(model.iteration_ns / 1e6), f"{off:+.1f} %"],
        ["busy %", "-" if told.busy is None else f"{100 * told.busy:.1f}", f"{100 * model.utilisation:.1f}", ""],
        ["exposed WAN s, mean of devices", figures((told.exposed_wan_ns or 0) / 1e9), figures(model.exposed_wan_ns / 1e9), ""],
        ["WAN MB a step", figures(sum(told.link_bytes.values()) / 1e6), figures(model.wan_bytes / 1e6), ""],
    ]  # fmt: skip
    show_table(
        [f"{model.schedule}, median of {told.steps} steps", "measured", "modelled", "difference"], rows
    )
    if told.link_bytes:
        say()
        lines = [
            [pair, figures(size / 1e6), f"{100 * told.link_use.get(pair, 0):.1f}"]
            for pair, size in told.link_bytes.items()
        ]
        show_table(["link", "MB a step", "busiest wire, % of the step"], lines)

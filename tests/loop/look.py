"""What is to be seen of a loop at one moment, in the words of a scenario, beside what the scenario expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from loop.drive import Loop
from loop.form import EndPart, Moment, RunsPart, Scene, WaitsPart
from unidle.control.queries.describe import explain, reason_now
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.place.snapshot import snapshot_of
from unidle.view.jobs import JobView

Wrong = Iterator[str]


class Look:
    """Compares moment after moment; events count from the one before."""

    def __init__(self, scene: Scene, loop: Loop) -> None:
        self.scene, self.loop = scene, loop
        self._seen = 0
        self._tier_of = {tier.id: tier.parent for tier in scene.fleet.tiers}
        self._tier_of |= {node.id: node.parent for node in scene.fleet.nodes}

    def at(self, moment: Moment) -> Wrong:
        """What is not as expected."""
        since, self._seen = self.loop.events[self._seen :], len(self.loop.events)
        view = self.loop.view
        if moment.started is not None:
            started = sorted(e.job for _, e in since if isinstance(e, ev.AttemptPlaced))
            yield from _differ("started", sorted(moment.started), started)
        if moment.stopped is not None:
            stopped: dict[str, list[str]] = {}
            for _, event in since:
                if isinstance(event, ev.StopAsked) and event.for_job is not None:
                    stopped.setdefault(event.for_job, []).append(event.job)
            expected = {job: sorted(victims) for job, victims in moment.stopped.items()}
            yield from _differ("stopped", expected, {job: sorted(v) for job, v in stopped.items()})
        for job, part in moment.runs.items():
            yield from self._runs(view.jobs[job], part)
        for job, why in moment.waits.items():
            yield from self._waits(view.jobs[job], why)
        for job, state in moment.ended.items():
            yield from _differ(f"{job} ended", state, view.jobs[job].state)
        yield from self._queues(moment)
        if moment.kept is not None:
            kept = {job: p.devices for job, p in view.promised.items() if p.expires_ns > self.loop.now_ns}
            yield from _differ("kept", moment.kept, kept)
        if moment.down is not None:
            yield from _differ("down", sorted(moment.down), sorted(view.health))
        if moment.free is not None:
            free = sum(view.occupancy.is_free(piece.id) for piece in view.fleet.slices())
            yield from _differ("free", moment.free, free)

    def ends(self) -> Wrong:
        for job in self.scene.jobs:
            part = self.scene.file.ends.get(job.id, EndPart())
            end = EndPart(state=part) if isinstance(part, str) else part
            view = self.loop.view.jobs[job.id]
            yield from _differ(f"ends: {job.id}: state", end.state, view.state)
            if end.attempts is not None:
                yield from _differ(f"ends: {job.id}: attempts", end.attempts, len(view.attempts))
            if end.started_s is not None:
                began = self.scene.s(view.attempts[0].placed_ns) if view.attempts else None
                yield from _differ(f"ends: {job.id}: started_s", end.started_s, began)
            if end.ended_s is not None:
                ended = None if view.ended_ns is None else self.scene.s(view.ended_ns)
                yield from _differ(f"ends: {job.id}: ended_s", end.ended_s, ended)
            yield from _reason(f"ends: {job.id}", reason_now(view), end.code, end.says, {})

    # -- one job -----------------------------------------------------------------------------------

    def _runs(self, job: JobView, given: str | list[str] | RunsPart) -> Wrong:
        attempt = job.live
        if attempt is None:
            yield f"{job.id} runs: it is {job.state}: {reason_now(job)}"
            return
        part = RunsPart(within=given) if isinstance(given, str) else given
        part = RunsPart(ranks=part) if isinstance(part, list) else part
        nodes = [place.node for place in attempt.places]
        slices = [piece for place in attempt.places for piece in place.slices]
        if part.within is not None:
            outside = [node for node in nodes if part.within not in self._above(node)]
            yield from _differ(f"{job.id} runs outside of {part.within}", [], outside)
        if part.ranks is not None:
            yield from _differ(f"{job.id} runs, by rank", part.ranks, nodes)
        if part.nodes is not None:
            yield from _differ(f"{job.id} runs, ranks by node", part.nodes, dict(Counter(nodes)))
        if part.devices is not None:
            yield from _differ(f"{job.id} runs on", part.devices, slices)
        if part.models is not None:
            model_of = {d.id: d.model for d in self.loop.view.fleet.devices()}
            models = sorted({model_of[piece.partition("#")[0]] for piece in slices})
            yield from _differ(f"{job.id} runs on models", part.models, models)
        if part.attempt is not None:
            yield from _differ(f"{job.id} runs, attempt", part.attempt, attempt.number)
        yield from _reason(f"{job.id} runs", attempt.because, part.code, part.says, part.figures)

    def _above(self, place: str | None) -> Iterator[str]:
        while place is not None:
            yield place
            place = self._tier_of.get(place)

    def _waits(self, job: JobView, given: str | WaitsPart) -> Wrong:
        if job.state not in ("queued", "restarting"):
            yield f"{job.id} waits: it is {job.state}: {reason_now(job)}"
            return
        part = WaitsPart(code=given) if isinstance(given, str) else given
        what = f"{job.id} waits"
        yield from _reason(what, reason_now(job), part.code, part.says, part.figures)
        if part.planned_s is not None:
            planned = job.verdict.figures.get("planned_start_ns") if job.verdict else None
            yield from _differ(f"{what}: planned_s", part.planned_s, self._s(planned))
        told = explain(self.loop.view, job)["waiting"]
        if part.expected_s is not None:
            yield from _differ(f"{what}: expected_s", part.expected_s, self._s(told["expected_start_ns"]))
        if part.ahead is not None:
            yield from _differ(f"{what}: ahead", part.ahead, told["ahead"])
        figures = {key: value for key, value in told["now"].items() if key not in ("code", "text")}
        now = Reason(told["now"]["code"], told["now"]["text"], figures)
        yield from _reason(f"{what}, now", now, part.now, part.now_says, part.now_figures)

    def _s(self, at_ns: Any) -> float | None:
        return None if at_ns is None else round(self.scene.s(int(at_ns)), 3)

    # -- queues --------------------------------------------------------------------------------------

    def _queues(self, moment: Moment) -> Wrong:
        if not moment.queues:
            return
        books = snapshot_of(self.loop.view, self.loop.now_ns)
        at = books.tree.resources.index(moment.of)
        rows = {row.queue: row for row in books.shares.report()}
        for queue, amounts in moment.queues.items():
            for what, expected in amounts.items():
                value = getattr(rows[queue], what)
                found = value[at] / 1000 if isinstance(value, tuple) else value
                yield from _differ(f"queue {queue}: {what}", expected, found)


def _reason(
    what: str, because: Reason | None, code: str | None, says: str | None, figures: Mapping[str, Any]
) -> Wrong:
    if code is not None and (because is None or because.code != code):
        yield f"{what}: expected the reason {code}, found {because}"
    if says is not None and (because is None or says not in because.text):
        yield f"{what}: expected that it says {says!r}, found {because and because.text!r}"
    for name, value in figures.items():
        yield from _differ(f"{what}: {name}", value, because and because.figures.get(name))


def _differ(what: str, expected: object, found: object) -> Wrong:
    if expected != found:
        yield f"{what}: expected {expected}, found {found}"

"""Decides what each attempt of a run does, and takes down what came of it: plans, losses, sites that come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from unidle.errors import CannotRun, UnidleError
from unidle.span.files.train import RunRequest
from unidle.span.model.setting import Setting
from unidle.span.plan.partition import balanced
from unidle.span.plan.run_plan import AttemptKey, chunks_of, plan_of
from unidle.span.rank.member import dashed
from unidle.span.rank.records import RankRecord
from unidle.span.replan.absent import AbsentSites, Unreachable
from unidle.span.replan.decide import Replan, first_choice, rearranged, reconsider, said
from unidle.span.replan.drift import drift
from unidle.span.replan.observed import Remaining, SpanAttempt, Step, row_of
from unidle.span.replan.rebalance import new_shares
from unidle.span.run.gang import SpanGang
from unidle.span.run.hosts import RunHosts, devices_of
from unidle.span.run.launchers import Launchers
from unidle.span.simulate.uneven import Modelled, PipelineShares, microbatches_of, simulated
from unidle.view.jobs import JobView
from unidle.words import counted, listed

FRUITLESS_MOST: Final = 5  # attempts one after the other that complete no step

_FINAL: Final = ("error", "wrong", "refused")  # what another attempt would end with, too

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """``every``: after so many steps the plan is checked (0: never); ``rejoin``: sites that answer again are taken back;
    ``fresh``: checkpoints that are there already are of another run."""

    every: int = 20
    rejoin: bool = True
    fresh: bool = False


class Coordinator:
    """One run. :meth:`turn` is called many times a second until the job has ended."""

    def __init__(
        self,
        wanted: RunRequest,
        hosts: RunHosts,
        gang: SpanGang,
        sites: Launchers,
        tell: Tell,
        options: RunOptions | None = None,
    ) -> None:
        self.wanted, self.hosts, self.gang, self.sites, self.tell = wanted, hosts, gang, sites, tell
        self.options = options or RunOptions()
        self.attempts: dict[int, SpanAttempt] = {}
        self.whole: int = 0  # the newest step with a checkpoint of all devices
        self.error: UnidleError | None = None
        self._absent = AbsentSites(wanted.setting, tuple(hosts.addresses))
        self._whole = first_choice(wanted.setting, wanted.schedule, wanted.training.cut)
        self._plan, self._without = self._whole, Unreachable()  # what runs, and what it does without
        self._shares = wanted.shares
        self._next: Replan | None = None
        self._next_shares: PipelineShares | None = None
        self._said: object = None
        self._notes: list[str] = []
        self._seen_back: object = None
        self.changes: list[dict[str, Any]] = []  # of the plan, while it runs
        self._fruitless = 0
        self._looked = 0
        self.is_over = False

    # -- the loop ------------------------------------------------------------------------------------

    def turn(self, job: JobView) -> bool:
        """What is new; True once the job has ended."""
        self._poll()
        if not job.terminal and self.error is None and not self.is_over:
            self._see_launchers()
            try:
                if self.sites.waiting():
                    self._begin()
            except UnidleError as error:
                self.error = error
                self.sites.over()
                self.gang.cancel("unidle span run: " + error.problem[:200])
        return job.terminal

    def _begin(self) -> None:
        """The plan of a new attempt, from what became of the one before."""
        number = len(self.attempts) + 1
        before = self.attempts.get(number - 1)
        if before is not None:
            self._poll()
            self._judge(before, self.sites.died())
        self._readmit()
        if self._absent.gone != self._without:
            self._rearrange()
        self._absent.begin()
        left = self._plan
        simulation = self._simulated(left.setting)
        devices = tuple(devices_of(left.setting))
        resume = self.whole or (0 if self.options.fresh else None)
        run = AttemptKey(self.gang.job, number - 1, resume, before.digest if before else None)
        plan = plan_of(
            self.wanted.training, simulation, self.hosts.addresses, run, _cut(left, simulation), left.names,
            self.wanted.shares.speeds if self.wanted.shares else None, left.planned,
        )  # fmt: skip
        self.attempts[number] = SpanAttempt(
            number, simulation, {own: name for name, own in left.names.items()}, devices,
            resumed=self.whole if before else 0, began_ns=time.monotonic_ns(),
        )  # fmt: skip
        working = [left.names[name] for name in devices]
        idle = [name for name in self.hosts.addresses if name not in working]
        asked = {name: self._absent.asked(name, working) for name in idle}
        plan["standing_by"] = {
            name: {other: list(self.hosts.addresses[other]) for other in others}
            for name, others in asked.items()
        }
        if before is not None:
            after = f"after step {self.whole}" if self.whole else "from the beginning"
            self._note(f"attempt {number}: continues {after} with {left.label}")
        plan["because"], self._notes = self._notes, []
        self.sites.begin(number, plan, (*working, *idle))

    def _see_launchers(self) -> None:
        """Sites whose launcher was started again come back at the next checkpoint, as those that answer again."""
        back, attempt = self.sites.returned(), self.attempts.get(len(self.attempts))
        if not (back and self.options.rejoin and attempt and attempt.start_ns):
            return
        if self._seen_back != (seen := (attempt.number, back)):
            self._seen_back = seen
            gone = self._absent.with_all(back)
            if self._is_worth_going_back(attempt, gone):
                self._absent.again = gone

    def _readmit(self) -> None:
        """An attempt begins: with all that are there, if there is a plan for them."""
        back = self.sites.returned() if self.options.rejoin else frozenset[str]()
        gone = self._absent.with_all(back)
        if back and (not gone or self._goes_on(gone) is not None):
            self.sites.readmit(back)
            self._absent.gone = gone
        self._absent.leave_out(self.sites.lost())

    def _note(self, text: str) -> None:
        """Tell it, and have it in the log of each rank of the next attempt."""
        self._notes.append(text)
        self.tell(text)

    def _rearrange(self) -> None:
        """Sites or links were lost, or are there again."""
        gone = self._without = self._absent.gone
        self._next, self._plan = None, self._whole
        if gone:
            self._plan = self._rearranged(gone)
            self._changed(self._plan, f"without {gone}")

    def _rearranged(self, gone: Unreachable) -> Replan:
        return rearranged(self._whole, gone.sites, gone.links, self._shares, same=not self.options.every)

    def _goes_on(self, gone: Unreachable) -> Replan | None:
        try:
            return self._rearranged(gone)
        except UnidleError:
            return None

    def _simulated(self, setting: Setting) -> Modelled:
        return simulated(setting, self._plan.schedule, self._shares)

    # -- what ranks say ------------------------------------------------------------------------------

    def _poll(self) -> None:
        for record in self.sites.records():
            if record.attempt in self.attempts:
                self.take(self.attempts[record.attempt], record)

    def take(self, attempt: SpanAttempt, record: RankRecord) -> None:
        """One record of this attempt."""
        body, device = record.body, attempt.called.get(record.device, record.device)
        if record.kind == "ready":
            self._ready(attempt, record.device, device, body)
        elif record.kind == "row":
            step = self._step(attempt, int(body["step"]))
            step.rows.append(row_of(attempt.simulation.setting, device, body, attempt.shifts.get(device, 0)))
        elif record.kind == "step":
            step = self._step(attempt, int(body["step"]))
            step.take(device, body, attempt.shifts.get(device, 0))
            if len(step.ends) == len(attempt.devices):
                self._stepped(attempt, step)
        elif record.kind == "checkpoint":
            self._saved(attempt, int(body["step"]))
        elif record.kind in ("apart", "unsaved"):
            self.tell(str(body["because"]))
        elif record.kind == "end":
            attempt.ends[device] = body
            if sum(end.get("why") == "done" for end in attempt.ends.values()) == len(attempt.devices):
                self.is_over = True
                self.sites.over()
        elif record.kind == "reach" and self.options.rejoin:
            self._absent.hear(device, body["reached"])
            worth = (gone for gone in self._absent.ways_back() if self._is_worth_going_back(attempt, gone))
            self._absent.again = next(worth, None)

    def _ready(self, attempt: SpanAttempt, own: str, device: str, body: dict[str, Any]) -> None:
        """Ranks of other hosts have clocks of their own: they are set by the wall clock."""
        here = time.time_ns() - time.monotonic_ns()
        there = int(body["wall_ns"]) - int(body["ns"])
        local = {str(node["id"]) for node in self.hosts.nodes}
        attempt.shifts[device] = 0 if dashed(own) in local else there - here
        attempt.digest = body.get("digest") or attempt.digest
        attempt.layers = body.get("layers") or attempt.layers
        attempt.ready.add(device)
        if len(attempt.ready) == len(attempt.devices):
            attempt.start_ns = time.monotonic_ns() - attempt.began_ns
            self.tell(f"all {counted(len(attempt.devices), 'device')} are ready")
            self._resumed(attempt, int(body.get("resumed") or 0))

    def _resumed(self, attempt: SpanAttempt, step: int) -> None:
        """Where a run of the same directory was before."""
        if step <= self.whole or (saving := self.wanted.training.saving) is None:
            return
        self.whole = attempt.resumed = step
        steps = self.wanted.training.steps
        self.tell(
            f"continues after step {step}, from the checkpoint in {saving.directory} (--fresh begins from the start)"
            if step < steps
            else f"the checkpoint in {saving.directory} is of step {step}, and train.steps is {steps}: nothing is left to train"
            " (--fresh begins from the start)"
        )

    @staticmethod
    def _step(attempt: SpanAttempt, number: int) -> Step:
        found = attempt.steps.get(number)
        if found is None:
            found = Step(number, attempt.number, microbatches_of(attempt.simulation))
            attempt.steps[number] = found
        return found

    def _stepped(self, attempt: SpanAttempt, step: Step) -> None:
        """A step that all devices have done."""
        self._fruitless = 0
        before = attempt.steps.get(step.number - 1)
        began = before.end_ns if before is not None and before.ends else step.begin_ns
        step.took_ns = step.end_ns - began
        modelled = attempt.simulation.result.iteration_ns
        loss = "-" if step.loss is None else f"{step.loss:.6f}"
        self.tell(
            f"step {step.number:>5}  loss {loss}  {step.took_ns / 1e6:9.1f} ms  (modelled {modelled / 1e6:.1f} ms)"
        )
        for old in [number for number in attempt.steps if number < step.number - 64]:
            attempt.steps[old].rows.clear()
        due = step.number - max(self._looked, attempt.resumed) >= self.options.every
        if self.options.every and due and step.number < self.wanted.training.steps:
            self._looked = step.number
            if not self._share_again(attempt):
                self._look_over(attempt)

    def _saved(self, attempt: SpanAttempt, step: int) -> None:
        """A checkpoint is complete: the rank that reports it has seen the parts of all ranks."""
        if step > self.whole:
            self.whole = step
            if step >= self.wanted.training.steps:  # nothing follows it
                return
            if self._absent.again is not None and not attempt.stopping:
                back = self._absent.gone.sites - self._absent.again.sites
                self._note(f"{listed(sorted(back))} answers: taken in after step {step}")
                self._absent.gone = self._absent.again
                self._stop(attempt)
            elif self._next is not None and not attempt.stopping:
                self._plan, self._next = self._next, None
                self._whole = self._whole if self._without else self._plan
                self._stop(attempt)
            if self._next_shares is not None:
                self._shares, self._next_shares = self._next_shares, None
                if not attempt.stopping:
                    self._stop(attempt)

    def _is_worth_going_back(self, attempt: SpanAttempt, gone: Unreachable) -> bool:
        """The whole plan always is; others where they win more than the restart takes."""
        if not gone:
            return True
        found = self._goes_on(gone)
        if found is None:
            return False
        recent = list(attempt.steps.values())[-self.options.every :] if self.options.every else []
        done = max((step.number for step in recent), default=self.whole)
        left = Remaining.after(recent, self.wanted.training.steps - done, attempt.start_ns)
        return left.is_worth(attempt.simulation.result.iteration_ns, found.best_ns)

    def _stop(self, attempt: SpanAttempt) -> None:
        attempt.stopping = True
        self.sites.stop(attempt.number)

    # -- what follows --------------------------------------------------------------------------------

    def _judge(self, attempt: SpanAttempt, dead: list[str]) -> None:
        """Decide which site the next attempt leaves out, if any. Errors: :class:`CannotRun` if another attempt would be of no use."""
        if attempt.stopping:
            return
        final = next((end for end in attempt.ends.values() if end.get("why") in _FINAL), None)
        if final is not None:
            raise CannotRun(
                str(final.get("because") or final["why"]),
                remedy=f"`unidle logs {self.gang.job}` shows the output",
            )
        self._fruitless += 1
        if self._fruitless > FRUITLESS_MOST:
            raise CannotRun(
                f"{FRUITLESS_MOST} attempts in a row made no progress: {attempt.why()}",
                remedy=f"`unidle logs {self.gang.job}` shows the output of the ranks",
            )  # fmt: skip
        if dead:
            self._note(f"attempt {attempt.number} ended: {listed(sorted(dead))} died")
            return
        self._note(f"attempt {attempt.number} ended: {attempt.why()}")
        ends = (
            (name, end) for name, end in attempt.ends.items() if end.get("why") == "link" and end.get("peer")
        )
        if (lost := next(ends, None)) is not None:
            self._leave_out(attempt, lost[0], str(lost[1]["peer"]))

    def _leave_out(self, attempt: SpanAttempt, device: str, peer: str) -> None:
        setting = attempt.simulation.setting
        a, b = (name.split("/")[0] for name in (device, peer))
        if a == b:
            return
        gone = self._absent.cut(setting, a, b)
        self._note(f"the link of {a} and {b} is gone: continues without {listed(sorted(gone))}")

    def _look_over(self, attempt: SpanAttempt) -> None:
        """Links and stages that are not as planned: whether another plan would now be faster."""
        if self.wanted.training.saving is None:
            return
        simulation = attempt.simulation
        recent = self._recent(attempt)
        seen = drift(simulation, recent)
        if not seen:
            return
        layers = self._layers(attempt)
        choice = reconsider(seen, self._plan, simulation, layers, self._shares, self._without.links)
        left = self._ahead(attempt, recent)
        worth = choice.is_worth(left)
        about = (attempt.number, tuple(seen.links), tuple(seen.stages), bool(seen.weather), worth)
        if about != self._said:  # the same again at each look would tell nothing
            self._said = about
            self._note(said(choice, seen, left))
        if worth:
            self._next = choice
            self._changed(choice, str(seen))

    def _changed(self, choice: Replan, because: str) -> None:
        self.changes.append({
            "after_step": max(self._looked, self.whole), "because": because, "schedule": choice.schedule.name,
            "sites": [site.name for site in choice.setting.sites], "layers": choice.cut, "same_ns": choice.same_ns,
            "modelled_ns": choice.best_ns,
        })  # fmt: skip

    def _recent(self, attempt: SpanAttempt) -> list[Step]:
        """Since the plan was checked before."""
        return [s for number, s in attempt.steps.items() if number > self._looked - self.options.every]

    def _ahead(self, attempt: SpanAttempt, recent: list[Step]) -> Remaining:
        return Remaining.after(recent, self.wanted.training.steps - self._looked, attempt.start_ns)

    def _layers(self, attempt: SpanAttempt) -> tuple[int, ...] | None:
        """Of each stage. Ranks that were given no cut took an even one."""
        stages = len(attempt.simulation.setting.stages)
        if self._plan.cut is not None or attempt.layers is None or chunks_of(attempt.simulation) > 1:
            return self._plan.cut
        return balanced(attempt.layers, [1.0] * stages, attempt.layers)

    def _share_again(self, attempt: SpanAttempt) -> bool:
        """Whether pipelines that prove slower than others get fewer microbatches: then nothing else changes with it."""
        training = self.wanted.training
        if self._next_shares is not None or attempt.stopping:
            return True
        if training.saving is None or training.semantics.get("outer") or self._next is not None:
            return False
        recent = self._recent(attempt)
        found = new_shares(attempt.simulation, self._plan.schedule, recent, self._ahead(attempt, recent))
        if found is not None:
            self._next_shares = found.shares
            self._note(found.line())
        return found is not None


def _cut(left: Replan, simulation: Modelled) -> tuple[int, ...] | None:
    parts = len(left.setting.stages) * chunks_of(simulation)
    if left.cut is None or len(left.cut) == parts:
        return left.cut
    raise CannotRun(
        f"gives {counted(len(left.cut), 'part')}, and {simulation.result.schedule} here has {parts}", field="train.cut",
        remedy="leave it out for an even cut",
    )  # fmt: skip

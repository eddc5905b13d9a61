"""What is wrong with running gangs: looks in, verdicts out. The judgement is ``unidle.guard.progress``'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from unidle.control.gangs.storage_stalls import stalls
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason
from unidle.jobs.vitals import GangVitals
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.guard.progress import GangFinding, GangJudge, GangProgress
    from unidle.guard.slowness import Slow, SlowJudge

SUSPECT_NS: Final = 1_500_000_000  # of silence
_SPARE: Final = 8  # attempts that have ended may be kept, so that a look costs little
_JUDGED = ("hang", "cut", "slow")
_EXCUSES = ("evaluation", "checkpoint", "restore", "compile")


class ProgressWatch:
    """Judges each gang each time that its vitals come in."""

    def __init__(self) -> None:
        self._judges: dict[tuple[str, int], tuple[GangJudge, SlowJudge]] = {}
        self.suspects = False  # whether the gang that was looked at last may turn out to hang

    def look(self, view: View, vitals: GangVitals) -> Iterator[ev.Event]:
        """The events that follow from a look. Each has to be applied before the next."""
        yield from self.seen(view, vitals)
        yield from stalls(view, vitals)

    def seen(self, view: View, vitals: GangVitals) -> Iterator[ev.Event]:
        """Hangs, cuts and slow ranks; none for an attempt that ends or is not known."""
        self.suspects = False
        key = (vitals.job, vitals.attempt)
        followed = _judged_now(view, vitals)
        if followed is None:
            self._judges.pop(key, None)
            return
        job, attempt = followed
        if (
            key not in self._judges
        ):  # imported for the first gang that is looked at: most runs begin without one
            from unidle.guard.progress import GangJudge
            from unidle.guard.slowness import SlowJudge

            self._prune(view)
            nodes = [place.node for place in attempt.places]
            self._judges[key] = (GangJudge(nodes), SlowJudge(peers_of(job.spec), nodes))
        judge, slow_judge = self._judges[key]
        progress = progress_of(attempt)
        found = judge.judge(vitals, progress)
        silent_ns = judge.silent_ns
        self.suspects = found is not None or (
            silent_ns is not None and bool(progress.steps_ns) and vitals.at_ns - silent_ns >= SUSPECT_NS
        )
        slow = slow_judge.judge(vitals, progress.known_ns)
        said: ev.VerdictReached | None = None
        if found is not None and found.certain:
            said = _verdict(job, attempt, found)
        elif found is None and slow is not None:
            said = _slow(job, attempt, slow, vitals.at_ns)
        standing = attempt.verdict
        if said is not None:
            if standing is None or (standing.kind, standing.rank) != (said.kind, said.rank):
                yield said
        elif found is None and standing is not None and standing.kind in _JUDGED:
            because = Reason("over", f"over: {standing.because.text}", standing.because.figures)
            yield ev.VerdictOver(job.id, attempt.number, because)

    def _prune(self, view: View) -> None:
        """Forget attempts that have ended: of most, the last look was before their end."""
        if len(self._judges) <= 2 * len(view.live) + _SPARE:
            return
        for job_id, number in list(self._judges):
            job = view.jobs.open.get(job_id)
            if job is None or job.live is None or job.live.number != number:
                del self._judges[job_id, number]


def _judged_now(view: View, vitals: GangVitals) -> tuple[JobView, AttemptView] | None:
    """The attempt of this observation; None where it is not live, ends, or has ranks that do not answer.

    Who does not answer may be at work: a new look begins when it answers again.
    """
    job = view.jobs.open.get(vitals.job)
    attempt = job.live if job is not None else None
    if job is None or attempt is None or attempt.number != vitals.attempt:
        return None
    return None if attempt.stop is not None or attempt.silent else (job, attempt)


def peers_of(spec: JobSpec) -> list[list[int]]:
    """Ranks that do the same work: all, or those of one stage of the pipeline."""
    stages = spec.layout.pp if spec.layout is not None else 1
    each = spec.ranks // stages
    return [list(range(stage * each, (stage + 1) * each)) for stage in range(stages)]


def progress_of(attempt: AttemptView) -> GangProgress:
    """What the attempt's ranks show of themselves."""
    from unidle.guard.progress import GangProgress, StepWindow

    lead = next((r for r in attempt.ranks if r.step_ns), None)
    said = [r.open for r in attempt.ranks if r.open is not None and r.open[1] in _EXCUSES]
    since_ns, span = max(said, default=(0, ""))
    begun_ns = max((r.spawn_ns or 0 for r in attempt.ranks), default=0)
    if lead is not None and not lead.guessed:
        return GangProgress(begun_ns, lead.step_ns[-64:], span, since_ns)
    seen = next((r.watched for r in attempt.ranks if r.watched_ns is not None), ())
    watched = [StepWindow(one.start_ns, one.end_ns, one.step_ns) for one in seen]
    return GangProgress(begun_ns, (), span, since_ns, watched)


def _verdict(job: JobView, attempt: AttemptView, found: GangFinding) -> ev.VerdictReached:
    from unidle.guard.restarts import acts_on_hang

    node, because = _laid_on(attempt, found, found.kind, {})
    acts = acts_on_hang(job.spec, found.rank)
    return ev.VerdictReached(
        job.id, attempt.number, found.kind, found.onset_ns, found.signal_ns, acts, because, found.rank, node
    )


def _slow(job: JobView, attempt: AttemptView, found: Slow, at_ns: int) -> ev.VerdictReached:
    """The report of a gang that is slowed down. The gang continues to run: no action follows automatically."""
    node, because = _laid_on(attempt, found, "slow", {"share": round(found.share, 3)})
    return ev.VerdictReached(
        job.id, attempt.number, "slow", found.since_ns, at_ns, False, because, found.rank, node
    )


def _laid_on(
    attempt: AttemptView, found: GangFinding | Slow, code: str, figures: dict[str, int | float | str]
) -> tuple[str, Reason]:
    """The node of the rank that something is laid on, and why, with the link where it is one."""
    if found.rank is not None:
        node = attempt.places[found.rank].node
        return node, Reason(code, f"{found.text} (node {node})", figures | {"rank": found.rank})
    links = {frozenset(attempt.places[end].node for end in pair) for pair in found.pairs}
    if len(links) != 1 or len(ends := sorted(links.pop())) != 2:
        return "", Reason(code, found.text, figures)
    link = "-".join(ends)
    return "", Reason(code, f"{found.text} (link {link})", figures | {"link": link})

"""What is wrong with running gangs: looks in, verdicts out. The judgement is ``unidle.guard.progress``'s."""

from __future__ import annotations

from collections.abc import Iterator

from unidle.events import types as ev
from unidle.guard.lifecycle import restarts_hung
from unidle.guard.progress import Finding, GangJudge, Progress
from unidle.jobs import Reason
from unidle.jobs.vitals import GangVitals
from unidle.view.state import AttemptView, JobView, View

_EXCUSES = ("evaluation", "checkpoint", "restore", "compile")


class GuardWatch:
    """Judges each gang as looks at it come in."""

    def __init__(self) -> None:
        self._judges: dict[tuple[str, int], GangJudge] = {}

    def seen(self, view: View, vitals: GangVitals) -> Iterator[ev.Event]:
        """The events that follow from a look; none for an attempt that ends or is not known."""
        key = (vitals.job, vitals.attempt)
        job = view.jobs.open.get(vitals.job)
        attempt = job.live if job is not None else None
        if job is None or attempt is None or attempt.number != vitals.attempt or attempt.stop is not None:
            self._judges.pop(key, None)
            return
        judge = self._judges.setdefault(key, GangJudge())
        found = judge.judge(vitals, progress_of(attempt))
        standing = attempt.verdict
        if found is not None and found.certain:
            if standing is None or (standing.kind, standing.rank) != (found.kind, found.rank):
                yield _verdict(job, attempt, found)
        elif found is None and standing is not None and standing.kind in ("hang", "cut"):
            because = Reason("goes_on", f"the gang goes on: {standing.because.text} is over")
            yield ev.VerdictOver(job.id, attempt.number, because)

    def forget(self, job: str, attempt: int) -> None:
        self._judges.pop((job, attempt), None)


def progress_of(attempt: AttemptView) -> Progress:
    """What the attempt's ranks show of themselves."""
    lead = next((r for r in attempt.ranks if r.step_ns), None)
    said = [r.open for r in attempt.ranks if r.open is not None and r.open[1] in _EXCUSES]
    since_ns, span = max(said, default=(0, ""))
    begun_ns = max((r.spawn_ns or 0 for r in attempt.ranks), default=0)
    return Progress(begun_ns, lead.step_ns[-64:] if lead is not None else (), span, since_ns)


def _verdict(job: JobView, attempt: AttemptView, found: Finding) -> ev.VerdictReached:
    node = "" if found.rank is None else attempt.places[found.rank].node
    acts = restarts_hung(job.spec.restart)
    text = found.text
    if found.rank is not None:
        text += f" (node {node})"
    because = Reason(found.kind, text, {} if found.rank is None else {"rank": found.rank})
    return ev.VerdictReached(
        job.id, attempt.number, found.kind, found.onset_ns, found.signal_ns, acts, because, found.rank, node
    )

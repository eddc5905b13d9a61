"""From sick to back in use: what to do next about one node or device. Pure.

    healthy -> suspect -> draining -> quarantine -> remedy -> proving -> probation -> healthy
                                          ^------------------------/            \\-> quarantine (it fell again;
    where a job worked on it meanwhile, over draining)
    draining, quarantine -> out: only a human (`unidle guard return`) brings it back

Every state but ``out`` ends by itself: it has a deadline, a bounded number of tries, or both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unidle.fleet.policies import HARD, RUNGS, STEP_OF, GuardPolicy, Hook, Rung
from unidle.guard.remedy_model import (
    CHECK,
    DRAINED,
    MAINTENANCE,
    SLACK_NS,
    Move,
    RemedyInputs,
    RemedyResult,
    Set,
    StopJob,
    TargetUse,
)
from unidle.jobs import Reason
from unidle.view.node_health import CareView
from unidle.words import counted

TIER: Final = "standard"
QUICK: Final = "quick"
_ORDER: Final = (MAINTENANCE, DRAINED, CHECK, *RUNGS)


def decide(
    target: str, here: CareView | None, facts: RemedyInputs, policy: GuardPolicy, now_ns: int
) -> tuple[Move, ...]:
    """What follows for the target now; nothing where it is to be waited for."""
    if here is None:
        return () if facts.node_busy else _open(target, None, facts, policy, now_ns)
    if facts.node_busy and here.state in ("suspect", "draining", "quarantine", "probation"):
        return (Set(target, "healthy", Reason("with_node", f"handled with its node {facts.of_node}")),)
    match here.state:
        case "suspect":
            return _suspect(here, facts, policy, now_ns)
        case "draining":
            return _draining(here, facts, policy, now_ns)
        case "quarantine":
            return _quarantine(here, facts, policy, now_ns)
        case "remedy":
            return _remedy(here, facts, policy, now_ns)
        case "proving":
            return _proving(here, facts, policy, now_ns)
        case "probation":
            return _probation(here, facts, policy, now_ns)
        case "maintenance":
            return _maintenance(here, policy, now_ns)
    return ()


def next_ns(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> int | None:
    """When :func:`decide` may answer otherwise although nothing happened."""
    times = [here.deadline_ns] if here.deadline_ns else []
    if here.state == "quarantine":
        if here.try_ > 1:
            times.append(here.since_ns + _hook(here.step, policy).pause_ns)
        times += [at + 3_600_000_000_000 for at in facts.begun[:1]]
    elif here.state == "draining":
        times.append(here.deadline_ns + SLACK_NS)
    elif here.state == "probation":
        limit_ns = policy.quick.timeout_ns + SLACK_NS if here.step else policy.probation_every_ns
        times.append(here.at_ns + limit_ns)
    later = [at for at in times if at > now_ns]
    return min(later, default=None)


# -- into it -----------------------------------------------------------------------------------------


def _open(
    target: str, here: CareView | None, facts: RemedyInputs, policy: GuardPolicy, now_ns: int
) -> tuple[Move, ...]:
    """A target in use: evidence against it, or planned maintenance."""
    window = facts.window
    if window is not None and window.drain_by_ns - policy.drain_ns <= now_ns < window.until_ns:
        text = f"maintenance from {window.by or 'the operator'}"
        return (Set(target, "draining", Reason(MAINTENANCE, text), MAINTENANCE, 0, window.drain_by_ns),)
    strikes = [s for s in facts.strikes if now_ns - s.at_ns < policy.suspect_ns]
    if facts.pending:
        step = max((STEP_OF[sign.action] for sign in facts.pending), key=_ORDER.index)
        text = facts.pending[-1].because.text
        return (_out_of_use(target, step, text, facts, policy, now_ns),)
    if len(strikes) > 1:
        text = f"{counted(len(strikes), 'gang')} hung or lost their peers here: {strikes[-1].because.text}"
        return (_out_of_use(target, CHECK, text, facts, policy, now_ns),)
    if strikes and here is None:
        return (_suspected(target, "strike", strikes[-1].because.text, policy, now_ns),)
    return ()


def _out_of_use(
    target: str, step: str, text: str, facts: RemedyInputs, policy: GuardPolicy, now_ns: int
) -> Set:
    """The target is to be taken out: at once, or not at all where too much would be out."""
    breaker = policy.breaker
    most = max(breaker.nodes, -(-facts.nodes * breaker.ppm // 1_000_000))
    if facts.falls >= most and facts.nodes > 1:
        says = f"{text}; {facts.falls} nodes failed at once, which has a common cause: none is removed"
        return _suspected(target, "breaker", says, policy, now_ns)
    full = _budget_full(facts, policy)
    if full:
        said = _suspected(target, "budget", f"{text}; not removed: {full}", policy, now_ns)
        return replace(said, because=replace(said.because, figures={"rung": step}))
    deadline_ns = now_ns + (policy.drain_hard_ns if step in HARD else policy.drain_ns)
    return Set(target, "draining", Reason("fault", text), step, 0, deadline_ns)


def _suspected(target: str, why: str, text: str, policy: GuardPolicy, now_ns: int) -> Set:
    return Set(target, "suspect", Reason("suspect", text), why, 0, now_ns + policy.suspect_ns)


def _budget_full(facts: RemedyInputs, policy: GuardPolicy) -> str:
    """Why no more may be out; empty where one more may."""
    by_ppm = max(facts.nodes * policy.out.ppm // 1_000_000, 1)
    most = by_ppm if policy.out.most is None else policy.out.most
    if facts.out >= most:
        return f"{facts.out} of {counted(facts.nodes, 'node')} are out of use, which is the limit"
    of_tier = max(facts.tier_nodes * policy.out.tier_ppm // 1_000_000, 1)
    if facts.tier_out >= of_tier:
        return f"{facts.tier_out} of {counted(facts.tier_nodes, 'node')} of its tier are out of use, which is the limit"
    return ""


def _suspect(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    if moved := _open(here.target, here, facts, policy, now_ns):
        same = isinstance(moved[0], Set) and moved[0].state == "suspect"
        if not same or facts.pending:
            return moved
    if here.step == "budget" and not _budget_full(facts, policy) and now_ns < here.deadline_ns:
        text, rung = here.because.text.partition("; not removed")[0], str(here.because.figures["rung"])
        return (_out_of_use(here.target, rung, text, facts, policy, now_ns),)
    if now_ns >= here.deadline_ns:
        return (Set(here.target, "healthy", Reason("over", "the fault was not seen again")),)
    return ()


# -- draining ----------------------------------------------------------------------------------------


def _draining(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    if facts.pending:
        worse = max((STEP_OF[sign.action] for sign in facts.pending), key=_ORDER.index)
        patient = here.step in (DRAINED, MAINTENANCE)  # a human looks at it anyhow
        step = here.step if patient else max(worse, here.step, key=_ORDER.index)
        soon_ns = now_ns + policy.drain_hard_ns if step in HARD else here.deadline_ns
        because = Reason("worse", facts.pending[-1].because.text)
        return (Set(here.target, "draining", because, step, 0, min(here.deadline_ns, soon_ns)),)
    late = now_ns >= here.deadline_ns
    if facts.jobs and now_ns < here.deadline_ns + SLACK_NS:
        patient = here.step in (DRAINED, MAINTENANCE)
        return tuple(
            StopJob(
                job.job, job.attempt, late and not patient, Reason("node_sick", _why_stopped(here, job, late))
            )
            for job in facts.jobs
            if not job.stopping and (late or _may_stop(job, here, patient))
        )
    if here.step == DRAINED:
        return (Set(here.target, "out", Reason("drained", f"drained; {_BACK}{here.target}`")),)
    if here.step == MAINTENANCE:
        until_ns = facts.window.until_ns if facts.window is not None else now_ns
        return (Set(here.target, "maintenance", here.because, "", 0, until_ns),)
    return (
        _lemon(here, here.cause.text, facts.offences, policy, now_ns) or _quarantined(here, policy, now_ns),
    )


_BACK: Final = "`unidle guard return "


def _may_stop(job: TargetUse, here: CareView, patient: bool) -> bool:
    """Whether nothing is lost by stopping the job now, or nothing is gained by waiting."""
    if job.saved_ns is not None and job.saved_ns >= here.opened_ns:
        return True
    return not job.saves and not patient


def _why_stopped(here: CareView, job: TargetUse, late: bool) -> str:
    what = f"{here.target} is taken out of use: {here.cause.text}"
    if job.saved_ns is not None and job.saved_ns >= here.opened_ns:
        return f"{what}; it has saved a checkpoint since"
    return f"{what}; the time limit for its checkpoint is over" if late and job.saves else what


def _lemon(
    here: CareView, text: str, offences: tuple[int, ...], policy: GuardPolicy, now_ns: int
) -> Set | None:
    """What falls again and again needs a human."""
    lemon = policy.lemon
    times = sum(1 for at in offences if now_ns - at < lemon.within_ns)
    if times < lemon.times:
        return None
    days = lemon.within_ns / 86_400e9
    return _needs_human(here, f"failed {times} times within {days:.3g} days, the last time: {text}")


def _quarantined(here: CareView, policy: GuardPolicy, now_ns: int) -> Set:
    because = Reason("quarantine", here.cause.text)
    return Set(here.target, "quarantine", because, here.step, 1, now_ns + policy.quarantine_ns)


def _needs_human(here: CareView, text: str) -> Set:
    return Set(here.target, "out", Reason("needs_human", f"{text}; after the repair: {_BACK}{here.target}`"))


# -- remedies ----------------------------------------------------------------------------------------


def _quarantine(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    if facts.pending:
        worse = max([STEP_OF[sign.action] for sign in facts.pending] + [here.step], key=_ORDER.index)
        if worse != here.step:
            because = Reason("worse", facts.pending[-1].because.text)
            return (Set(here.target, "quarantine", because, worse, 1, here.deadline_ns),)
    if now_ns >= here.deadline_ns:
        return (_needs_human(here, f"no remedy could start in time: {here.because.text}"),)
    if facts.part_busy:
        return ()
    hook = _hook(here.step, policy)
    if here.try_ > 1 and now_ns < here.since_ns + hook.pause_ns:
        return ()
    limit_ns = now_ns + hook.timeout_ns + SLACK_NS
    if here.step == CHECK:
        text = f"check whether it is fit, attempt {here.try_} of {hook.tries}"
        return (Set(here.target, "proving", Reason("proving", text), TIER, here.try_, limit_ns),)
    if not hook.command:
        return (_climb(here, here.step, f"the fleet file has no command for {here.step}", policy, now_ns),)
    if facts.of_node and here.step in HARD:
        return _hand_over(here, facts, policy, now_ns)
    if len(facts.begun) >= policy.out.per_hour:
        return ()
    text = f"{here.step}, attempt {here.try_} of {hook.tries}: {here.cause.text}"
    return (Set(here.target, "remedy", Reason("remedy", text), here.step, here.try_, limit_ns),)


def _hand_over(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    """What is left to do for a device is done with its node."""
    because = Reason("with_node", f"handled with its node: {here.step}")
    if _budget_full(facts, policy):
        return ()
    deadline_ns = now_ns + policy.drain_hard_ns
    why = Reason("fault", f"{here.target} needs {here.step}: {here.cause.text}")
    return (
        Set(facts.of_node, "draining", why, here.step, 0, deadline_ns),
        Set(here.target, "healthy", because),
    )


def _hook(step: str, policy: GuardPolicy) -> Hook:
    return policy.remedies.get(_as_rung(step), Hook()) if step in RUNGS else policy.prove


def _as_rung(step: str) -> Rung:
    return next(rung for rung in RUNGS if rung == step)


def _climb(here: CareView, after: str, text: str, policy: GuardPolicy, now_ns: int) -> Set:
    """The next rung of the ladder above ``after``; the end of it needs a human."""
    above = RUNGS[RUNGS.index(_as_rung(after)) + 1 :] if after in RUNGS else RUNGS
    rung = next((r for r in above if r in policy.remedies and policy.remedies[r].command), None)
    if rung is None:
        return _needs_human(here, f"{text}, and no other remedy is left")
    because = Reason("next", f"{text}; next: {rung}")
    return Set(here.target, "quarantine", because, rung, 1, now_ns + policy.quarantine_ns)


def _again(here: CareView, step: str, hook: Hook, text: str, policy: GuardPolicy, now_ns: int) -> Set | None:
    """The same step once more; None where all its tries are used."""
    if here.try_ >= hook.tries:
        return None
    because = Reason("again", f"{text}; tried again")
    return Set(here.target, "quarantine", because, step, here.try_ + 1, now_ns + policy.quarantine_ns)


def _remedy(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    result = facts.result
    if result is None:
        if now_ns < here.deadline_ns:
            return ()
        result = RemedyResult("silent", "it did not end in time")
    hook = _hook(here.step, policy)
    if result.answer == "ok":
        text = f"{here.step} is done: {result.text}; next, a check"
        limit_ns = now_ns + policy.prove.timeout_ns + SLACK_NS
        return (Set(here.target, "proving", Reason("proving", text), TIER, 1, limit_ns),)
    text = f"{here.step} failed: {result.text}"
    return (
        _again(here, here.step, hook, text, policy, now_ns) or _climb(here, here.step, text, policy, now_ns),
    )


# -- back --------------------------------------------------------------------------------------------


def _proving(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    result = facts.result
    if facts.pending:
        return (_fell(here, facts, policy, now_ns),)
    if result is None:
        if now_ns < here.deadline_ns:
            return ()
        result = RemedyResult("silent", "no answer in time")
    if result.answer == "ok":
        return (_on_probation(here, f"fit by the {here.step} check", policy, now_ns),)
    if result.answer == "failed":
        return (_climb(here, here.rung, f"unfit: {result.text}", policy, now_ns),)
    text = f"the {here.step} check was undecided: {result.text}"
    if again := _again(here, CHECK, policy.prove, text, policy, now_ns):
        return (again,)
    if not policy.accept_unknown or result.answer == "away":
        return (_needs_human(here, f"{text}, {counted(here.try_, 'time')}"),)
    return (_on_probation(here, f"{text}; no problem was found", policy, now_ns),)


def _on_probation(here: CareView, text: str, policy: GuardPolicy, now_ns: int) -> Set:
    because = Reason("probation", f"{text}; on probation")
    return Set(here.target, "probation", because, "", 0, now_ns + policy.probation_ns)


def _fell(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> Set:
    """It fell again before it was back."""
    text = facts.pending[-1].because.text
    if lemon := _lemon(here, text, (*facts.offences, now_ns), policy, now_ns):
        return lemon
    wanted = max((STEP_OF[sign.action] for sign in facts.pending), key=_ORDER.index)
    above = _climb(here, here.rung, f"it failed again: {text}", policy, now_ns)
    if above.state == "out":
        return above
    step = max(wanted, above.step, key=_ORDER.index)
    return Set(here.target, "quarantine", Reason("fell", above.because.text), step, 1, above.deadline_ns)


def _cleared(here: CareView, said: Set, facts: RemedyInputs, now_ns: int) -> tuple[Move, ...]:
    """It leaves probation for worse: who works there is stopped at once, before any remedy begins."""
    if not facts.jobs:
        return (said,)
    if said.state == "quarantine":
        over_ns = now_ns - 1  # nobody is waited for
        return (Set(here.target, "draining", said.because, said.step, 0, over_ns),)
    because = Reason("node_sick", f"{here.target} is taken out of use: {said.because.text}")
    return (*(StopJob(job.job, job.attempt, True, because) for job in facts.jobs if not job.stopping), said)


def _probation(here: CareView, facts: RemedyInputs, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    if facts.pending:
        return _cleared(here, _fell(here, facts, policy, now_ns), facts, now_ns)
    rest = Reason("probation", here.because.text)
    if here.step:
        late = now_ns >= here.at_ns + policy.quick.timeout_ns + SLACK_NS
        if facts.result is not None and facts.result.answer == "failed":
            above = _climb(here, here.rung, f"unfit on probation: {facts.result.text}", policy, now_ns)
            return _cleared(here, above, facts, now_ns)
        if facts.result is not None and facts.result.answer == "away":
            text = f"no answer on probation: {facts.result.text}"
            again = Set(
                here.target, "quarantine", Reason("again", text), CHECK, 1, now_ns + policy.quarantine_ns
            )
            return _cleared(here, again, facts, now_ns)
        if facts.result is not None or late:
            return (Set(here.target, "probation", rest, "", here.try_, here.deadline_ns),)
        return ()
    if now_ns >= here.deadline_ns:
        return (Set(here.target, "healthy", Reason("returned", "returned to service after probation")),)
    if now_ns >= here.at_ns + policy.probation_every_ns:
        return (Set(here.target, "probation", rest, QUICK, here.try_ + 1, here.deadline_ns),)
    return ()


def _maintenance(here: CareView, policy: GuardPolicy, now_ns: int) -> tuple[Move, ...]:
    if now_ns < here.deadline_ns:
        return ()
    text = "its maintenance is over; next, a check"
    deadline_ns = now_ns + policy.quarantine_ns
    return (Set(here.target, "quarantine", Reason("maintenance_over", text), CHECK, 1, deadline_ns),)

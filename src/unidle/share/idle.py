"""Holders that do no work: they get a notice, and are released after it if the policy allows that. Pure.

An attempt is *quiet* since its last sign of work: a step, a save, a span that keeps its devices for a
reason (evaluating, restoring, ...), or measured utilisation. The ledger's rows are made of these signs. Time
that the ledger only infers to be a step, because nothing else is known, is not a sign.

An attempt that was quiet for ``after_ns`` of watched time gets a notice, once its utilisation was found low
or cannot be measured. A sign of work withdraws the notice. After ``notice_ns`` of watched time the attempt is
released, but only with evidence: low utilisation, or steps that stopped. A job without any step whose
utilisation cannot be measured may be at work, so it is reported but never released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from unidle.fleet.policies import MINUTE_NS, IdleTerms
from unidle.jobs import Reason
from unidle.words import US_PER_HOUR, device_time, plural, wait

HOUR_NS: Final = 60 * MINUTE_NS
_S: Final = 1_000_000_000
_PACES: Final = 3

Evidence = Literal["utilisation", "steps", "none"]
Step = Literal["tell", "withdraw", "release"]


class AttemptId(NamedTuple):
    """An attempt that holds slices now."""

    job: str
    number: int


class ActiveNotice(NamedTuple):
    """A notice in force: since when, how long it is, and how much of that time has been watched."""

    since_ns: int
    notice_ns: int  # 0: it said that nothing will be released
    passed_ns: int


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """An attempt that holds devices: since when it shows no work, how that is known, what it holds.

    ``evidence`` is None while its devices are busy or not measured yet. ``quiet_ns`` is the watched time since
    ``since_ns``, ``sign_ns`` the last sign of work (0: none yet), ``pace_ns`` the longest recent step, and
    ``unmeasured`` why its utilisation is unknown.
    """

    attempt: AttemptId
    queue: str
    since_ns: int
    quiet_ns: int
    sign_ns: int
    slices: int
    share_ppm: int
    evidence: Evidence | None
    notice: ActiveNotice | None = None
    pace_ns: int = 0
    unmeasured: str = ""

    @property
    def device_hours(self) -> float:
        """What it has held since."""
        return self.quiet_ns / HOUR_NS * self.share_ppm / 1_000_000


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """What to do about one holder now, if anything; ``notice_ns`` goes with a notice.

    ``watch``: its utilisation is to be measured. ``again_ns``: when time alone may change the answer.
    """

    step: Step | None = None
    because: Reason | None = None
    notice_ns: int = 0
    watch: bool = False
    again_ns: int | None = None


def measure_every_ns(terms: IdleTerms) -> int:
    """How often to measure the utilisation of a holder under these terms."""
    return max(min(terms.after_ns // 20, MINUTE_NS), _S // 2)


def decide_idle(holder: IdleHolder, terms: IdleTerms | None, now_ns: int) -> IdlePlan:
    """What to do about a holder at ``now_ns``; ``terms`` None leaves it alone."""
    notice = holder.notice
    if notice is not None and (terms is None or holder.sign_ns > notice.since_ns):
        again_ns = None if terms is None else now_ns + measure_every_ns(terms)
        return IdlePlan("withdraw", _over(holder, now_ns, spared=terms is None), again_ns=again_ns)
    if terms is None:
        return IdlePlan()
    notice_ns = terms.notice_ns if terms.release and holder.evidence != "none" else 0
    if notice is not None and (notice.notice_ns or not notice_ns):
        return _on_notice(holder, notice, terms, now_ns)
    return _not_told(holder, terms, notice_ns, now_ns)


def _not_told(holder: IdleHolder, terms: IdleTerms, notice_ns: int, now_ns: int) -> IdlePlan:
    """No notice stands, or one that promised not to release what is to be released by now."""
    after_ns = terms.after_ns if holder.sign_ns else terms.start_ns
    if holder.evidence == "steps":
        after_ns = max(after_ns, _PACES * holder.pace_ns)  # a slow step is no missing one
    left_ns = after_ns - holder.quiet_ns
    if left_ns <= 0:
        if holder.evidence is None:
            return IdlePlan(watch=True)  # what is measured will bring the next look
        again_ns = now_ns + notice_ns if notice_ns else None
        return IdlePlan("tell", _told(holder, terms, notice_ns), notice_ns, watch=True, again_ns=again_ns)
    # one that never showed a step may show none: only its utilisation can tell
    watch_ns = after_ns // 2 if holder.sign_ns else measure_every_ns(terms)
    if holder.quiet_ns < watch_ns:
        return IdlePlan(again_ns=now_ns + watch_ns - holder.quiet_ns)
    return IdlePlan(watch=True, again_ns=now_ns + left_ns)


def _on_notice(holder: IdleHolder, notice: ActiveNotice, terms: IdleTerms, now_ns: int) -> IdlePlan:
    if not terms.release or not notice.notice_ns or holder.evidence in (None, "none"):
        return IdlePlan(watch=True)
    left_ns = notice.notice_ns - notice.passed_ns
    if left_ns > 0:
        return IdlePlan(watch=True, again_ns=now_ns + left_ns)
    what = "released by policy after a notice of " + wait(notice.notice_ns)
    return IdlePlan("release", _reason(holder, "idle_released", what))


def _told(holder: IdleHolder, terms: IdleTerms, notice_ns: int) -> Reason:
    if notice_ns:
        after = "it then waits again" if terms.then == "requeue" else "the job then ends"
        what = f"will be released in {wait(notice_ns)} unless it works again; {after}"
    elif terms.release:
        what = "is not released: it has printed no step, so it may be working"
    else:
        what = "is not released: the policy only sends notices"
    return _reason(holder, "idle_notice", what)


def _over(holder: IdleHolder, now_ns: int, *, spared: bool) -> Reason:
    assert holder.notice is not None
    if spared:
        return Reason("idle_spared", "now excluded by the policy: the notice is withdrawn")
    quiet_ns = max(holder.sign_ns - holder.notice.since_ns, 0)
    text = f"works again after {wait(quiet_ns)}: the notice is withdrawn"
    return Reason("idle_over", text, {"quiet_ns": quiet_ns, "sign_ns": min(holder.sign_ns, now_ns)})


def _reason(holder: IdleHolder, code: str, what: str) -> Reason:
    devices = holder.share_ppm / 1_000_000
    measured = " or utilisation" if holder.evidence == "utilisation" else ""
    unmeasured = f", its utilisation unknown ({holder.unmeasured})" if holder.unmeasured else ""
    text = (
        f"holds {devices:g} {plural(devices, 'device')}, {wait(holder.quiet_ns)} without a step{measured}"
        f" ({device_time(holder.device_hours * US_PER_HOUR)}){unmeasured}: {what}"
    )
    figures: dict[str, int | float | str] = {
        "since_ns": holder.since_ns,
        "quiet_ns": holder.quiet_ns,
        "slices": holder.slices,
        "share_ppm": holder.share_ppm,
        "evidence": holder.evidence or "none",
    }
    return Reason(code, text, figures)

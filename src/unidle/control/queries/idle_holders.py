"""Jobs that hold devices and do nothing, in plain values (``unidle fleet --idle``). Pure."""

from __future__ import annotations

from typing import Any

from unidle.ledger.money import HOUR_NS, to_micro
from unidle.share.idle import IdleHolder
from unidle.view.idle_holders import holder_of, terms_of
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

Plain = dict[str, Any]


def idle_holders(view: View, now_ns: int) -> list[Plain]:
    """Those that have a notice, or have shown no work for as long as the policy waits before one.

    A holder whose devices are known to be busy is left out. One that is exempt by the policy is included and marked.
    The longest quiet device time comes first.
    """
    lines = []
    for job_id in sorted(view.live):
        job = view.jobs.open[job_id]
        attempt = job.attempts[-1]
        holder = holder_of(view, job, attempt, now_ns)
        terms = terms_of(view, job) or view.fleet.idle.terms
        after_ns = terms.after_ns if holder.sign_ns else terms.start_ns
        if attempt.notice is not None or (attempt.use.use != "busy" and holder.quiet_ns >= after_ns):
            lines.append(_line(view, job, attempt, holder, now_ns))
    return sorted(lines, key=lambda line: (-line["device_hours"], line["job"]))


def _line(view: View, job: JobView, attempt: AttemptView, holder: IdleHolder, now_ns: int) -> Plain:
    terms, notice = terms_of(view, job), attempt.notice
    releases = terms is not None and terms.release
    release_ns = None
    if notice is not None and holder.notice is not None and notice.notice_ns and releases:
        release_ns = now_ns + max(notice.notice_ns - holder.notice.passed_ns, 0)
    return {
        "job": job.id,
        "attempt": attempt.number,
        "queue": job.spec.queue,
        "user": job.spec.user,
        "slices": [piece for place in attempt.places for piece in place.slices],
        "devices": holder.share_ppm / 1_000_000,
        "since_ns": holder.since_ns,
        "quiet_ns": holder.quiet_ns,
        "device_hours": holder.device_hours,
        "cost": _cost(view, job, attempt, holder.quiet_ns),
        "currency": view.fleet.currency,
        "evidence": holder.evidence or ("steps" if holder.sign_ns else "none"),
        "measured": attempt.use.text or attempt.use.use,
        "policy": "left alone" if terms is None else "releases" if terms.release else "tells",
        "notice_ns": notice.at_ns if notice is not None else None,
        "release_ns": release_ns,
        "because": notice.because.text if notice is not None else None,
    }


def _cost(view: View, job: JobView, attempt: AttemptView, quiet_ns: int) -> float | None:
    """What the quiet time of its slices costs; None where the price of one is not known."""
    total = 0
    for place in attempt.places:
        for piece in place.slices:
            ref = view.book.slices[view.book.index(piece)]
            price = job.spec.price_per_device_hour
            if price is None:
                price = view.fleet.prices_per_device_hour.get(ref.model)
            if price is None:
                return None
            total += to_micro(price) * ref.share_ppm
    return total * quiet_ns / HOUR_NS / 1e12

"""What clients ask of a controller, and submitted jobs before one takes them over."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from unidle.jobs import JobSpec, Reason
from unidle.store.protocol import Request
from unidle.view.jobs import JobView
from unidle.view.state import View

NOT_TAKEN_UP = Reason("not_taken_up", "nobody has taken it up yet: is `unidle up` running on this store?")


class SubmitRequest(msgspec.Struct, frozen=True):
    """Body of an inbox request of kind ``submit``."""

    job: str
    spec: JobSpec


class CancelRequest(msgspec.Struct, frozen=True):
    """Body of an inbox request of kind ``cancel``; ``only_waiting``: a job that ever started stays."""

    job: str
    by: str
    only_waiting: bool = False


def add_submitted(view: View, requests: Iterable[Request]) -> None:
    """Show submitted jobs in a view that is only read: as queued, with the reason that nobody drives them."""
    for request in requests:
        # one that cannot be read is put away by the next controller
        with suppress(msgspec.MsgspecError):
            if request.kind == "submit":
                _add(view, msgspec.json.decode(request.body, type=SubmitRequest), request.time_ns)


def _add(view: View, submit: SubmitRequest, time_ns: int) -> None:
    if submit.job not in view.jobs:
        job = JobView(submit.job, submit.spec, len(view.jobs), time_ns)
        job.verdict = NOT_TAKEN_UP
        view.jobs.add(job)

"""What clients ask of a controller, and submitted jobs before one takes them over."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec

from unidle.errors import BadInput
from unidle.jobs import JobSpec, Reason
from unidle.jobs.spec import is_job_id
from unidle.login import login_name
from unidle.store.protocol import Request, Store
from unidle.view.jobs import JobView
from unidle.view.state import View

NOT_TAKEN_UP = Reason("not_taken_up", "no controller has read it yet: is `unidle up` running on this store?")


class SubmitRequest(msgspec.Struct, frozen=True):
    """Body of an inbox request of kind ``submit``."""

    job: str
    spec: JobSpec


class CancelRequest(msgspec.Struct, frozen=True):
    """Body of an inbox request of kind ``cancel``; ``only_waiting``: a job that ever started stays."""

    job: str
    by: str
    only_waiting: bool = False


class RemoveRequest(msgspec.Struct, frozen=True):
    """Body of an inbox request of kind ``remove``: jobs that have ended; others stay."""

    jobs: tuple[str, ...]
    by: str


class KeepRequest(msgspec.Struct, frozen=True):
    """Body of an inbox request of kind ``keep``: jobs that retention leaves alone, or does so no longer."""

    jobs: tuple[str, ...]
    keep: bool
    by: str


def signed(store: Store, spec: JobSpec, user: str | None = None) -> tuple[JobSpec, str]:
    """The job as this process may submit it to the store, and the submitter. ``user``: its owner, if not the file's.

    Errors: :class:`BadInput` if the job is for another user and the submitter does not own the store.
    """
    sender, wanted = store.user(), user or spec.user
    if store.owned_by(sender):
        return replace(spec, user=wanted), sender
    if wanted not in (sender, login_name()):  # the latter where nothing was said
        raise BadInput(
            f"only the owner of the store may submit for others, and this is {sender}", field="user", value=wanted,
            remedy=f"leave --user out; the job then belongs to {sender}",
        )  # fmt: skip
    return replace(spec, user=sender), sender


def not_theirs(store: Store, request: Request, spec: JobSpec) -> Reason | None:
    """Why the sender of a request may not submit this job; None where they may."""
    sender = request.sender
    if not sender or sender == spec.user or store.owned_by(sender):
        return None
    text = f"{sender} may not submit for {spec.user}: only the owner of the store may submit for others"
    return Reason("not_the_owner", text, {"sender": sender, "user": spec.user})


def refused(store: Store, request: Request, submit: SubmitRequest) -> Reason | None:
    """Why a job is not submitted; None where it may be."""
    if (because := not_theirs(store, request, submit.spec)) is not None:
        return because
    if not is_job_id(submit.job):  # the id becomes a path
        return Reason("bad_id", "the id of the job cannot be a file's name", {"job": submit.job})
    return None


def add_submitted(view: View, requests: Iterable[Request]) -> None:
    """Show submitted jobs in a read-only view: as queued, with the reason that no controller has adopted them."""
    for request in requests:
        # one that cannot be read is put away by the next controller
        with suppress(msgspec.MsgspecError, RecursionError):
            if request.kind == "submit":
                _add(view, msgspec.json.decode(request.body, type=SubmitRequest), request)


def _add(view: View, submit: SubmitRequest, request: Request) -> None:
    if submit.job not in view.jobs and is_job_id(submit.job):
        at_ns = request.time_ns
        job = JobView(submit.job, submit.spec, len(view.jobs), at_ns, waiting_since_ns=at_ns)
        job.verdict, job.submitted_by = NOT_TAKEN_UP, request.sender
        view.jobs.add(job)

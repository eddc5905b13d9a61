"""Requests of clients to a controller: their forms, who may make them, and how the loop takes them in bounded portions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from unidle.clock import Clock
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason
from unidle.jobs.spec import is_job_id
from unidle.login import login_name
from unidle.store.protocol import Request, Store
from unidle.view.jobs import JobView
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.recorder import Recorder

NOT_TAKEN_UP = Reason("not_taken_up", "no controller has read it yet: is `unidle up` running on this store?")
INBOX_EVERY_NS: Final = 250_000_000
INBOX_AT_ONCE: Final = 128  # requests in one turn
INBOX_TURN_NS: Final = 30_000_000  # how long they may take of it


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


class Inbox:
    """The inbox of one controller. ``every_ns``: between two looks; None: it is never read."""

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, every_ns: int | None) -> None:
        self._store, self._clock, self._recorder, self._every_ns = store, clock, recorder, every_ns
        self._looked_ns = 0

    @property
    def next_ns(self) -> int | None:
        """When to look again; None: never."""
        return None if self._every_ns is None else self._looked_ns + self._every_ns

    def take(self, carry_out: Callable[[Request], None]) -> None:
        """Carry out what is due. A request that cannot be read is refused in the log: it must not stop each controller."""
        now = self._clock.now_ns()
        if self._every_ns is None or now - self._looked_ns < self._every_ns:
            return
        requests = self._store.requests(INBOX_AT_ONCE)
        self._looked_ns = now if len(requests) < INBOX_AT_ONCE else 0  # else the next turn has more of them
        for request in requests:
            if self._clock.now_ns() - now > INBOX_TURN_NS:
                self._looked_ns = 0
                break
            try:
                carry_out(request)
            except (msgspec.MsgspecError, RecursionError) as error:
                self._refuse(request.id, request.kind, Reason("unreadable", f"cannot be read: {error}"))
            else:
                self._recorder.request_done(request.id)
        for damaged in self._store.damaged_requests():
            because = Reason(
                "damaged", f"request {damaged.id} is damaged in the store: its checksum is wrong"
            )
            self._refuse(damaged.id, damaged.kind, because)

    def _refuse(self, number: int, kind: str, because: Reason) -> None:
        self._recorder.emit(ev.RequestRefused(kind, because))
        self._recorder.request_done(number)

"""Parts of ranks' files on their hosts: asked for by any thread, sent and answered in the loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from unidle.engine.hosts.core import HostsCore
from unidle.engine.hosts.kept_output import KeptOutput
from unidle.errors import CannotRun
from unidle.hub import frames
from unidle.hub.file_parts import NotThere, RankFilePart, part_of

MOST_BYTES = 256 * 1024  # of one read: the frame of its answer has at most 1 MiB


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A part of one file of a rank's directory on ``node``; a negative ``offset`` counts from the end."""

    node: str
    job: str
    attempt: int
    rank: int
    file: str
    offset: int
    count: int


class Reads:
    """Requests of other threads. ``wake_fd`` is readable while one waits to be sent."""

    def __init__(self, kept: KeptOutput | None = None) -> None:
        self._kept = kept
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asked: deque[tuple[ReadRequest, Future[RankFilePart]]] = deque()
        self._closed = False

    def ask(self, request: ReadRequest) -> Future[RankFilePart]:
        """From any thread. Its errors: CannotRun where the host is not there, or does not have the file."""
        future: Future[RankFilePart] = Future()
        self._asked.append((request, future))
        if self._closed:
            self._fail_all()
        else:
            os.eventfd_write(self.wake_fd, 1)
        return future

    def send(self, core: HostsCore) -> None:
        """In the loop: pass on what was asked for. The box is asked, or the agent where the box has ended; or it is read from what was kept."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return
        while self._asked:
            request, future = self._asked.popleft()
            if future.set_running_or_notify_cancel():
                self._send(core, request, future)

    def _send(self, core: HostsCore, request: ReadRequest, future: Future[RankFilePart]) -> None:
        place, kept = (request.job, request.attempt, request.rank), self._kept
        over = (request.job, request.attempt) not in core.gangs

        def failed(error: CannotRun) -> None:
            if kept is not None and over and kept.has(place):
                kept.read(place, request.file, request.offset, min(request.count, MOST_BYTES), future)
            else:
                future.set_exception(error)

        _send(core, request, future, failed)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._fail_all()
        os.close(self.wake_fd)

    def _fail_all(self) -> None:
        while self._asked:
            _, future = self._asked.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(CannotRun("the controller ends"))


def _send(
    core: HostsCore, request: ReadRequest, future: Future[RankFilePart], failed: Callable[[CannotRun], None]
) -> None:
    link = core.boxes.at.get((request.node, request.job))
    box = None if link is None else link.peer
    peer = box or core.nodes.agent(request.node)
    if peer is None:
        failed(
            CannotRun("its host is not connected", field="node", value=request.node, remedy="try again later")
        )
        return

    def answered(done: frames.Done) -> None:
        try:
            future.set_result(_part(done))
        except CannotRun as error:
            failed(error)

    number = core.out.ask(peer.id, answered)
    job = "" if peer is box else request.job
    core.out.tell(
        peer.id,
        frames.Read(
            number, request.attempt, request.rank, request.file, request.offset,
            min(request.count, MOST_BYTES), job,
        ),
    )  # fmt: skip


def _part(done: frames.Done) -> RankFilePart:
    if not done.ok:
        raise CannotRun(done.why or "the connection of its host ended before the answer")
    try:
        return part_of(done.data)
    except NotThere as error:
        raise CannotRun(str(error)) from None


def answer_to(fetch: frames.Fetch, future: Future[RankFilePart]) -> frames.Done:
    """The answer to a reader: its part, or why there is none."""
    error = future.exception()
    if error is not None:
        return frames.Done(fetch.id, ok=False, why=str(error))
    return frames.Done(fetch.id, ok=True, data=future.result().as_data())

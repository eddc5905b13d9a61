"""The front door without HTTP: requests go to workers, tokens come back to their tickets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from unidle.fill.serve.http.errors import ApiError, busy, unavailable
from unidle.fill.serve.metrics import Metrics
from unidle.fill.serve.router import ROUTES, Router
from unidle.fill.serve.text.stops import StopFilter
from unidle.fill.serve.text.tokenizer import TextTokenizer
from unidle.fill.serve.ticket import OpenRequest
from unidle.fill.serve.wire import Cancel, Prefilled, Report, Sampling, Submit, WorkerGreeting

_NOT_READ_S: Final = 60.0


class WorkerSeat(Protocol):
    """A connected worker. ``report``: its last one; ``sent``: requests that it has."""

    greeting: WorkerGreeting
    report: Report
    sent: dict[int, OpenRequest]

    def send(self, message: Submit | Cancel) -> None: ...


@dataclass(frozen=True, slots=True)
class DoorRules:
    """``most_waiting``: requests that may wait to be begun; ``stop_tokens``: those that end an answer; ``handoffs``: directory of files."""

    most_waiting: int
    stop_tokens: tuple[int, ...]
    handoffs: Path


class Door:
    """All requests that are not complete. One event loop."""

    def __init__(self, tokenizer: TextTokenizer, router: Router, rules: DoorRules) -> None:
        self.metrics = Metrics()
        self.dedicated = list[WorkerSeat]()
        self.bubbles = list[WorkerSeat]()
        self.draining = False
        self._tokenizer = tokenizer
        self._router = router
        self._rules = rules
        self._tickets = dict[int, OpenRequest]()
        self._timers = dict[int, asyncio.TimerHandle]()
        self._ids = itertools.count(1)

    @property
    def open_requests(self) -> int:
        return len(self._tickets)

    def admit(self, prompts: int, samples: int, longest: int) -> None:
        """Errors: :class:`ApiError` if so many prompts, each with ``samples`` of at most ``longest`` tokens, cannot be taken now."""
        if self.draining:
            raise self._refused("draining", unavailable("The server is shutting down."))
        if not self.dedicated:
            raise self._refused(
                "no worker",
                unavailable("The model is not ready: no worker is connected. Please retry later."),
            )
        if not any(
            samples <= one.greeting.batch and _blocks(one.greeting, longest) * samples <= one.greeting.blocks
            for one in self.dedicated
        ):
            raise self._refused("too large", ApiError(
                400, "The request needs more memory than the server has: reduce 'n' or the number of tokens.", param="n", code="invalid_value"
            ))  # fmt: skip
        waiting = sum(1 for ticket in self._tickets.values() if not ticket.times.begun)
        if waiting + prompts > self._rules.most_waiting:
            raise self._refused(
                "queue full",
                busy(
                    f"{waiting} requests are waiting, and at most {self._rules.most_waiting} may. Please retry later."
                ),
            )

    def _refused(self, reason: str, error: ApiError) -> ApiError:
        self.metrics.count("rejected_total", f'reason="{reason}"')
        return error

    def open(
        self, tokens: list[int], most: int, samples: int, sampling: Sampling, stops: Sequence[str]
    ) -> OpenRequest:
        """Send a prompt to a worker."""
        submit = Submit(next(self._ids), tokens, most, samples, sampling, list(self._rules.stop_tokens))
        route = self._router.choose(len(tokens), bubbles=bool(self.bubbles))
        made = [(self._tokenizer.stream(tokens), StopFilter(stops)) for _ in range(samples)]
        ticket = OpenRequest(submit, made, route)
        self._tickets[ticket.id] = ticket
        if route == "bubbles":
            self._to_bubbles(ticket)
        else:
            self._to_dedicated(ticket)
        return ticket

    def close(self, ticket: OpenRequest, outcome: str) -> None:
        """The client has all that it will get: what is left of the request is cancelled. A second call does nothing."""
        if self._tickets.pop(ticket.id, None) is None:
            return
        self._withdraw(ticket)
        for link in self.dedicated:
            if link.sent.pop(ticket.id, None) is not None and ticket.worker_left:
                link.send(Cancel(ticket.id))
        self._count(ticket, outcome)

    def lost(self, link: WorkerSeat) -> None:
        """A worker ended: its requests fail, or go to dedicated devices from the bubbles."""
        if link in self.bubbles:
            self.bubbles.remove(link)
            for ticket in list(link.sent.values()):
                self._spill(ticket)
            return
        if link in self.dedicated:
            self.dedicated.remove(link)
        for ticket in link.sent.values():
            ticket.fail(
                ApiError(500, "The worker that ran this request ended. Please retry.", code="worker_lost")
            )
        link.sent.clear()

    def received(self, link: WorkerSeat, message: Report | Prefilled) -> None:
        """What a worker sent."""
        if isinstance(message, Prefilled):
            self._prefilled(link, message)
            return
        now_s = time.monotonic()
        link.report = message
        for request in message.begun:
            if (ticket := self._tickets.get(request)) is not None:
                ticket.times.begun = ticket.times.begun or now_s
        tickets = self._tickets
        for token in message.tokens:
            if (ticket := tickets.get(token.id)) is not None and ticket.feed(token, now_s):
                link.send(Cancel(ticket.id, token.sample))
        for request, why in message.failed:
            if (ticket := tickets.get(request)) is not None:
                ticket.fail(
                    ApiError(500, f"The worker could not run this request: {why}.", code="worker_failed")
                )

    def fail_all(self, error: ApiError) -> None:
        """End what is left with an error."""
        for ticket in list(self._tickets.values()):
            ticket.fail(error)

    def drop_unread(self, now_s: float) -> None:
        """Cancel requests whose clients have not read for long: what sends the answer waits for them, and closes the connection."""
        for ticket in self._tickets.values():
            if ticket.reader and ticket.unread_since and now_s - ticket.unread_since > _NOT_READ_S:
                ticket.reader.cancel()

    def _to_dedicated(self, ticket: OpenRequest) -> None:
        if not self.dedicated:
            ticket.fail(unavailable("No worker is connected. Please retry later."))
            return
        link = min(self.dedicated, key=lambda one: len(one.sent) / one.greeting.batch)
        link.sent[ticket.id] = ticket
        link.send(ticket.submit)

    def _to_bubbles(self, ticket: OpenRequest) -> None:
        link = min(self.bubbles, key=lambda one: len(one.sent))
        ticket.submit.handoff = str(self._rules.handoffs / f"{ticket.id}.safetensors")
        link.sent[ticket.id] = ticket
        self._router.sent(len(ticket.submit.tokens), time.monotonic())
        self._timers[ticket.id] = asyncio.get_running_loop().call_later(
            self._router.patience_s, self._spill, ticket
        )
        link.send(ticket.submit)

    def _spill(self, ticket: OpenRequest) -> None:
        """It waited in the bubbles too long, or they are gone."""
        if self._withdraw(ticket) and ticket.id in self._tickets:
            self.metrics.count("spilled_total")
            ticket.route = "dedicated"
            self._to_dedicated(ticket)

    def _withdraw(self, ticket: OpenRequest, *, prefilled: bool = False) -> bool:
        """Take it out of the bubbles, if it is there; the file that may have been written goes, too."""
        held = [link for link in (*self.bubbles,) if ticket.id in link.sent]
        timer = self._timers.pop(ticket.id, None)
        if timer is None:
            return False
        timer.cancel()
        self._router.left(len(ticket.submit.tokens), time.monotonic(), prefilled=prefilled)
        for link in held:
            del link.sent[ticket.id]
            if not prefilled:
                link.send(Cancel(ticket.id))
        if not prefilled:
            _remove(ticket.submit.handoff)
            ticket.submit.handoff = None
        return True

    def _prefilled(self, link: WorkerSeat, message: Prefilled) -> None:
        ticket = link.sent.get(message.id)
        if ticket is None or not self._withdraw(ticket, prefilled=True):
            _remove(str(self._rules.handoffs / Path(message.file).name))
            return
        ticket.times.begun = time.monotonic()
        self._to_dedicated(ticket)

    def _count(self, ticket: OpenRequest, outcome: str) -> None:
        labels, times, metrics = f'route="{ticket.route}"', ticket.times, self.metrics
        metrics.count("requests_total", f'{labels},outcome="{outcome}"')
        metrics.count("prompt_tokens_total", labels, len(ticket.submit.tokens))
        metrics.count("completion_tokens_total", labels, ticket.tokens)
        if times.begun:
            metrics.observe("queue_seconds", labels, times.begun - times.arrived)
        if times.first:
            metrics.observe("ttft_seconds", labels, times.first - times.arrived)
        each = ticket.tokens / ticket.submit.samples
        if each > 1:
            metrics.observe("tpot_seconds", labels, (times.last - times.first) / (each - 1))

    def gauges(self) -> dict[tuple[str, str], float]:
        """Values of this moment."""
        found: dict[tuple[str, str], float] = {
            ("running", f'route="{route}"'): sum(1 for one in self._tickets.values() if one.route == route)
            for route in ROUTES
        }
        found["waiting", ""] = sum(1 for one in self._tickets.values() if not one.times.begun)
        found["kv_blocks_used", ""] = sum(one.report.used_blocks for one in self.dedicated)
        found["kv_blocks", ""] = sum(one.greeting.blocks for one in self.dedicated)
        found["workers", 'kind="dedicated"'] = len(self.dedicated)
        found["workers", 'kind="bubbles"'] = len(self.bubbles)
        found["cpu_seconds_total", 'process="door"'] = time.process_time()
        found["cpu_seconds_total", 'process="workers"'] = (
            sum(one.report.cpu_ns for one in self.dedicated) / 1e9
        )
        return found


def _blocks(greeting: WorkerGreeting, tokens: int) -> int:
    return -(-tokens // greeting.block_tokens)


def _remove(file: str | None) -> None:
    if file:
        with contextlib.suppress(OSError):
            Path(file).unlink(missing_ok=True)

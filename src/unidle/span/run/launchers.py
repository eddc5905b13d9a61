"""Who starts the ranks: this machine alone, or with the launchers of other sites, each on its own host."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from unidle.errors import CannotRun
from unidle.span.rank.environment import give_up_s
from unidle.span.rank.records import RankRecord, RecordReader
from unidle.span.run.gang import SpanGang
from unidle.span.run.hosts import site_of
from unidle.span.wan import Channel, Endpoint, Settings, WanError
from unidle.view.jobs import AttemptView, JobView
from unidle.words import counted

LEADER: Final = "launcher"
_AHEAD: Final = 8  # messages that may come between two looks
_SIGNALLED: Final = 128
_TOLD: Final = 128 + 15
_OTHER_FILE: Final = "its span file differs from that of the first site"


def settings() -> Settings:
    """Of the launchers' own channels: they bear a cut as long as ranks do. Errors: BadInput."""
    return Settings(flows=1, give_up_s=give_up_s())


class Launchers(Protocol):
    """All launchers of a run, as the one that decides sees them. Attempts have the numbers of :meth:`begin`."""

    def waiting(self) -> bool:
        """Whether every launcher's ranks wait for a plan. Errors: :class:`CannotRun` if another launcher cannot continue."""

    def begin(self, number: int, plan: dict[str, Any], devices: Sequence[str]) -> None:
        """Give it to all; ``devices``: whose records are read, those that stand by among them."""

    def records(self) -> Iterator[RankRecord]:
        """What is new."""

    def stop(self, number: int) -> None:
        """All ranks of the attempt leave, and wait for another plan."""

    def over(self) -> None:
        """The run is over: ranks that stand by leave, other launchers end."""

    def died(self) -> list[str]:
        """Devices of the last attempt that were killed, other than by a stop that was requested."""

    def lost(self) -> frozenset[str]:
        """Sites whose launcher is gone."""

    def returned(self) -> frozenset[str]:
        """Those of them whose launcher was started again, and waits."""

    def readmit(self, names: frozenset[str]) -> None:
        """From the next :meth:`begin` on these take part; they have :meth:`returned`."""


@dataclass(slots=True)
class LocalLauncher:
    """The ranks that this launcher starts."""

    gang: SpanGang
    mine: frozenset[str]
    _own: dict[int, int] = field(default_factory=dict)  # the gang's attempt of each of the run's
    _readers: list[RecordReader] = field(default_factory=list)
    _job: JobView | None = None

    def see(self, job: JobView) -> None:
        """The job as it is now."""
        self._job = job

    def waiting(self) -> bool:
        job = self._job
        return bool(
            job and not job.terminal and job.attempts and job.attempts[-1].number not in self._own.values()
        )

    def begin(self, number: int, plan: dict[str, Any], devices: Sequence[str]) -> None:
        assert self._job is not None
        own = self._own[number] = self._job.attempts[-1].number
        self._readers.append(RecordReader(self.gang.place, own, tuple(d for d in devices if d in self.mine)))
        self.gang.write_plan(own, plan)

    def records(self) -> Iterator[RankRecord]:
        for reader, number in zip(self._readers[-2:], list(self._own)[-2:], strict=True):
            for record in reader.poll():
                yield RankRecord(number, record.device, record.body)

    def stop(self, number: int) -> None:
        if number in self._own:
            self.gang.stop_attempt(self._own[number])

    def over(self) -> None:
        self.gang.over()

    def died(self) -> list[str]:
        job = self._job
        if job is None or not self._own:
            return []
        last = [attempt for attempt in job.attempts if attempt.number == list(self._own.values())[-1]]
        return _died(last[0]) if last else []

    def lost(self) -> frozenset[str]:
        return frozenset()

    def returned(self) -> frozenset[str]:
        return frozenset()

    def readmit(self, names: frozenset[str]) -> None:
        """Nothing to do: there is no other launcher that could be gone."""


def _died(attempt: AttemptView) -> list[str]:
    """The nodes of ranks that were killed; if it is known which rank failed first, at most the node of that rank."""
    nodes = {place.rank: place.node for place in attempt.places}
    codes = {rank: seen.code or 0 for rank, seen in enumerate(attempt.ranks) if seen.ended}
    dead = [rank for rank, code in codes.items() if code < 0 or (code > _SIGNALLED and code != _TOLD)]
    culprit = attempt.stop.culprit if attempt.stop is not None else None
    if culprit is not None:
        return [nodes[culprit]] if culprit in dead else []
    return [nodes[rank] for rank in dead]


class LauncherChannel:
    """JSON messages over a channel, in order."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._posted = deque(channel.recv("m") for _ in range(_AHEAD))

    def send(self, message: dict[str, Any]) -> None:
        self.channel.send("m", json.dumps(message).encode())

    def poll(self) -> Iterator[dict[str, Any]]:
        """What has come. Errors: :class:`WanError` once the other side is gone."""
        while self._posted[0].done():
            message: dict[str, Any] = json.loads(bytes(self._posted.popleft().result()))
            self._posted.append(self.channel.recv("m"))
            yield message


class RemoteLaunchers:
    """The launcher that decides, and the others, which connected to it.

    ``missing``: those that have not come; ``accept``: the channel of one. A site takes part while all its launchers are there.
    """

    def __init__(
        self, here: LocalLauncher, talks: dict[str, LauncherChannel], digest: str, tell: Callable[[str], None],
        accept: Callable[[str], Channel], missing: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.here, self._talks, self._digest, self._tell, self._accept = here, talks, digest, tell, accept
        self._coming: dict[str, LauncherChannel] = {}  # of sites that were gone
        self._returned: set[str] = set()
        self._waits: dict[str, bool] = dict.fromkeys(talks, False)
        self._died: dict[str, list[str]] = {}
        self._gone = set(missing)
        self._number = 0
        self._stopped: set[int] = set()
        self._kept: list[RankRecord] = []
        self.failure: CannotRun | None = None

    def waiting(self) -> bool:
        self._listen()
        if self.failure is not None:
            raise self.failure
        here = self.here.waiting()
        others = [self._waits[name] for name in self._talks if name not in self._gone]
        if self._number and (here or any(others)) and not (here and all(others)):
            self.stop(self._number)  # one has to begin again, so all have
        return here and all(others)

    def begin(self, number: int, plan: dict[str, Any], devices: Sequence[str]) -> None:
        self._number = number
        self.here.begin(number, plan, devices)
        for name in self._live():
            self._waits[name] = False
            self._talks[name].send({"plan": plan, "number": number, "devices": list(devices)})

    def records(self) -> Iterator[RankRecord]:
        self._listen()
        kept, self._kept = self._kept, []
        yield from kept
        yield from self.here.records()

    def stop(self, number: int) -> None:
        if number in self._stopped:
            return
        self._stopped.add(number)
        self.here.stop(number)
        for name in self._live():
            self._talks[name].send({"stop": number})

    def over(self) -> None:
        self.here.over()
        for talk in (*(self._talks[name] for name in self._live()), *self._coming.values()):
            talk.send({"over": True})

    def died(self) -> list[str]:
        return [*self.here.died(), *(device for found in self._died.values() for device in found)]

    def lost(self) -> frozenset[str]:
        return frozenset(map(site_of, self._gone))

    def returned(self) -> frozenset[str]:
        return self.lost() - frozenset(map(site_of, self._gone - self._returned))

    def readmit(self, names: frozenset[str]) -> None:
        for name in [each for each in self._returned if site_of(each) in names]:
            self._talks[name], self._waits[name], self._died[name] = self._coming.pop(name), True, []
            self._returned.discard(name)
            self._gone.discard(name)

    def _live(self) -> list[str]:
        return [name for name in self._talks if name not in self._gone]

    def _listen(self) -> None:
        for name in self._live():
            try:
                for message in self._talks[name].poll():
                    self._hear(name, message)
            except WanError as error:
                self._gone.add(name)
                self._tell(f"the launcher of {name} is gone: {error}")
                if self._number:
                    self.stop(self._number)
        for name in self._gone:
            self._look_for(name)

    def _look_for(self, name: str) -> None:
        """Whether the launcher of a site that is gone was started again."""
        if name not in self._coming:
            channel = self._accept(name)
            if not channel.flows_open:
                return
            self._coming[name] = LauncherChannel(channel)
        try:
            for message in self._coming[name].poll():
                if message.get("file", self._digest) != self._digest:
                    self._coming[name].send({"over": True, "because": _OTHER_FILE})
                elif "waiting" in message:
                    self._returned.add(name)
                    self._tell(f"the launcher of {name} is there")
        except WanError:
            del self._coming[name]
            self._returned.discard(name)

    def _hear(self, name: str, message: dict[str, Any]) -> None:
        if "waiting" in message:
            self._waits[name], self._died[name] = True, list(message["died"])
        elif "records" in message:
            self._kept += [
                RankRecord(int(number), str(device), body) for number, device, body in message["records"]
            ]
        elif "file" in message and message["file"] != self._digest:
            self._talks[name].send({"over": True, "because": _OTHER_FILE})
            self.failure = CannotRun(
                f"the span file of {name} differs from the one here",
                field="FILE",
                remedy="copy this file to its host",
            )
        elif "failed" in message:
            self.failure = CannotRun(
                f"{name}: {message['failed']}",
                remedy=f"`unidle logs` on the host of {name} shows the output of its ranks",
            )


def named(launcher: str) -> str:
    """The endpoint of a launcher."""
    return f"{LEADER}-{launcher}"


def gathered(
    endpoint: Endpoint,
    names: Sequence[str],
    wait_s: float,
    tell: Callable[[str], None],
    *,
    all_of_them: bool = True,
) -> dict[str, LauncherChannel]:
    """The launchers of the other sites that have come within ``wait_s``.

    Errors: :class:`CannotRun` naming those that did not, where ``all_of_them`` have to.
    """
    channels = {name: endpoint.accept(named(name)) for name in names}
    end, told = time.monotonic() + wait_s, 0.0
    while missing := [name for name, channel in channels.items() if not channel.flows_open]:
        if time.monotonic() > end and not all_of_them:
            break
        if time.monotonic() > end:
            refused = f" ({endpoint.refusals[-1]})" if endpoint.refusals else ""
            raise CannotRun(
                f"{', '.join(missing)} did not connect within {wait_s:g} s{refused}", field="--site",
                remedy="start `unidle span run FILE --site NAME` there, with the same file and UNIDLE_SPAN_SECRET; or begin with"
                " those that have come (--begin-without)",
            )  # fmt: skip
        if time.monotonic() > told + 10:
            told = time.monotonic()
            tell(f"waits for {counted(len(missing), 'site')}: {', '.join(missing)}")
        time.sleep(0.05)
    return {name: LauncherChannel(channel) for name, channel in channels.items() if name not in missing}

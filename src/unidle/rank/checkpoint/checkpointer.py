"""The two lines in a training script: restore, and step."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import unidle.rank as report
from unidle.checkpoint.holder import wire
from unidle.checkpoint.holder.attempts import attempt_of
from unidle.checkpoint.holder.memory_copies import Label
from unidle.checkpoint.holder.wire import Gone, Message
from unidle.checkpoint.layout import Damaged
from unidle.errors import BadInput, CannotRun
from unidle.rank.checkpoint import restore as back
from unidle.rank.checkpoint.collectives import Collectives, peer_of, writers
from unidle.rank.checkpoint.holder_client import HolderClient
from unidle.rank.checkpoint.save_schedule import SaveSchedule
from unidle.rank.checkpoint.stage import Pieces, StagingArea
from unidle.rank.checkpoint.state import (
    Extra,
    Offsets,
    TrainingState,
    fingerprint,
    named,
    pack,
    pieces_of,
    unpack,
)

if TYPE_CHECKING:
    from unidle.rank.checkpoint.reader import ShardSet

_TESTS: Final = ("load", "read")


class Checkpointer:
    """Keeps the state of a job in memory that outlives the process, on another node, and on storage.

    Make it on every rank, after the process group and the (wrapped) model and optimizer. ``model`` and
    ``optimizer`` are one or a mapping of several; ``data`` and ``extra`` are objects with ``state_dict`` and
    ``load_state_dict``, or pairs of functions (get, set). ``every``: steps between checkpoints on storage, or
    ``"auto"``; ``memory_every``: steps between copies in memory, 0 for none but those on their way to storage.
    ``keep`` newest checkpoints stay on storage, with ``keep_every`` those too whose step is a multiple of it.
    ``restore_test``: ``load`` loads each one in a process of its own, ``read`` reads it back only.

    Raises BadInput, and CannotRun where the directory cannot be written or another job writes to it; on every rank.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, model: Any, optimizer: Any = None, data: Extra | None = None,
        extra: Mapping[str, Extra] | None = None, every: int | str = "auto", memory_every: int = 1, keep: int = 2,
        keep_every: int = 0, restore_test: str = "load",
    ) -> None:  # fmt: skip
        self.directory = os.path.abspath(directory)
        options = {"keep": keep, "keep_every": keep_every, "restore_test": restore_test}
        _check(options, memory_every)
        extras = dict(extra or {}) | ({"data": data} if data is not None else {})
        self._state = TrainingState(named(model, "model"), named(optimizer, "optimizer"), extras)
        self._due, self._memory_every = SaveSchedule(every), memory_every
        self._ranks = Collectives()
        self._offsets: Offsets = {}
        self._writers: dict[str, int | None] | None = None
        self._newest: int | None = None  # the step of the last copy that every rank made
        self._owed: int | None = None  # the last step, where its save was due and could not be made
        self._storing: set[int] = set()  # with rank 0: steps on their way to storage
        self._untested: set[int] = set()  # stored, and its restore test is not done
        self._on_its_way: Message | None = None
        self._said: set[str] = set()
        self._broken = ""
        self._session = secrets.token_hex(6)
        problem, identity = _identity(self.directory) if self._ranks.rank == 0 else ("", "")
        self._session, problem, identity = self._ranks.from_first((self._session, problem, identity))
        linger_s = float(os.environ.get("UNIDLE_HOLD_LINGER_S", "900"))
        hold = wire.hold_directory(self.directory, self._ranks.node, identity)
        self._client = HolderClient(self.directory, hold, self._ranks.node, linger_s)
        self._stage = StagingArea(hold, self._ranks.rank, self._ranks.world, self._session)
        self._join(options, problem)

    # ---- the three calls

    def restore(self) -> int:
        """Load the newest complete state; return its number of steps, or 0 without a state.

        Called on every rank. A checkpoint that fails its checks is reported, and the previous one is loaded.
        Raises CannotRun if there are checkpoints but none is good, BadInput if they are of another model.
        """
        with report.restoring():
            step = self._restore()
        if self._ranks.rank == 0:
            report.restored(step)
        return step

    def _restore(self) -> int:
        found = self._ranks.from_first(self._offers() if self._ranks.rank == 0 else None)
        for offer in found:
            problem = self._try(offer)
            if problem is None:
                self._due.from_step(offer.step)
                self._say(f"continues after step {offer.step}, from {offer.name}")
                return int(offer.step)
            self._say(f"{offer.name} is bad and is skipped: {problem}")
        if found or self._bad_on_storage:
            raise CannotRun(
                "no checkpoint in it is good", field="directory", value=self.directory,
                remedy="`unidle checkpoint verify` shows why; to start from step 0, move them to another directory",
            )  # fmt: skip
        return 0

    def step(self, n: int) -> None:
        """Step ``n`` is done on this rank: save what is due. Waits for no storage and no peer.

        Called on every rank after each step. An error of a save is reported once; training continues.
        """
        report.step(n)
        self._hear()
        due = self._due.is_due(n)
        in_memory = self._memory_every and n % self._memory_every == 0
        if not in_memory and self._due.counts_steps and not due:
            return  # every rank knows that
        lead = self._ranks.rank == 0
        not_ready, store, storing, first = self._ranks.most(
            [not self._ready, due and lead, bool(self._storing), self._writers is None]
        )
        self._owed = n if store and (not_ready or storing) else None
        if not_ready or not ((store and not storing) or in_memory):
            return
        if first:
            self._share_out()
        self._save(n, bool(store and not storing))

    def close(self, timeout_s: float = 600.0) -> None:
        """Wait until pending saves are on storage, and release the memory. Called on every rank right after the
        last step.

        A save that was due with that step, but delayed by the previous save, is made here.
        """
        end_s = time.monotonic() + timeout_s
        self._settle(end_s)
        if self._owed is not None:
            not_ready, first = self._ranks.most([not self._ready, self._writers is None])
            if not not_ready:
                if first:
                    self._share_out()
                self._save(self._owed, store=True)
                self._settle(end_s)
        self._client.tell({"do": "bye"})
        self._client.close()
        self._stage.remove()

    @property
    def _ready(self) -> bool:
        """Whether this rank could make a copy now."""
        return (
            self._client.alive
            and self._stage.free() is not None
            and self._stage.all_sent()
            and not self._broken
        )

    def _settle(self, end_s: float) -> None:
        """Wait until what was begun is on storage on every rank."""
        self._stage.wait()
        while True:
            self._hear(start=False)
            waits = self._client.alive and bool(self._storing | self._untested)
            if not self._ranks.most([waits and time.monotonic() < end_s])[0]:
                return
            time.sleep(0.02)

    # ---- joining

    def _join(self, options: Message, problem: str) -> None:
        """Find or start the holder of this node, get to know those of the others, and register."""
        mine: Message = {"node": self._ranks.node, "why": problem, "address": None}
        self._raise_first([mine])  # all have it from rank 0
        host = wire.own_host()
        hosts = self._ranks.gather(host)
        try:
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(30, "it cannot be written")
            mine["address"] = self._client.start(wire.host_among(hosts, host)).to_json()
        except OSError as error:
            mine["why"] = f"{error.strerror or error}"
        except Gone as error:
            mine["why"] = str(error)
        nodes = self._agree(mine)
        peer = peer_of(self._ranks.rank, [node["node"] for node in nodes]) if self._memory_every else None
        lead = (
            nodes[0]["address"]
            if nodes[0]["address"]["name"] != nodes[self._ranks.rank]["address"]["name"]
            else None
        )
        hello = {
            "do": "hello", "rank": self._ranks.rank, "session": self._session, "options": options, "lead": lead,
            "attempt": asdict(attempt_of(os.environ, self._session)),
            "peer": nodes[peer]["address"] if peer is not None else None,
        }  # fmt: skip
        self._peer = peer
        try:
            self._client.hello(hello)
        except Gone as error:
            mine["why"] = str(error)
        self._agree(mine)

    def _agree(self, mine: Message) -> list[Message]:
        """What every rank found; an error on all of them where one has a problem."""
        found: list[Message] = self._ranks.gather(mine)
        self._raise_first(found)
        return found

    def _raise_first(self, found: Iterable[Message]) -> None:
        for other in found:
            if other["why"]:
                self._client.close()
                raise CannotRun(
                    str(other["why"]), field="directory", value=self.directory,
                    remedy="give each job its own directory, with write permission",
                )  # fmt: skip

    # ---- saving

    def _share_out(self) -> None:
        """Agree on who writes what; once, after the first step, when the optimizer has its state."""
        pieces = pieces_of(self._state.tensors(), self._offsets)
        held = {key: (t.numel() * t.element_size(), fingerprint(t)) for key, (t, *_) in pieces.items()}
        self._writers = writers(self._ranks.gather(held))
        unpack(pack(self._state.own()))  # what cannot be read back is better known now

    def _mine(self) -> Pieces:
        """The pieces that this rank writes. A piece without a chosen rank is written by all ranks that hold it."""
        assert self._writers is not None
        found: Pieces = {}
        for key, piece in pieces_of(self._state.tensors(), self._offsets).items():
            writer = self._writers.get(key, self._ranks.rank)
            if writer is None:
                name = f"{piece[1]}@rank{self._ranks.rank}"
                found[f"{key}@rank{self._ranks.rank}"] = (piece[0], name, piece[2], piece[3])
            elif writer == self._ranks.rank:
                found[key] = piece
        return found

    def _save(self, step: int, store: bool) -> None:
        begin_s = time.monotonic()
        through, self._newest = self._newest, step
        reads = ({"sent"} if self._peer is not None else set()) | ({"written"} if store else set())

        def then(slot: int, name: str, label: Label) -> None:
            message = {
                "do": "copied", "slot": slot, "name": name, "label": asdict(label), "store": store, "through": through,
            }  # fmt: skip
            if store and self._ranks.rank:
                self._on_its_way = message  # until a holder has written it
            self._client.tell(message)

        try:
            if store:
                if self._ranks.rank == 0:
                    self._storing.add(step)
                with report.saving():
                    self._stage.copy(step, self._mine(), pack(self._state.own()), reads, then)
            else:
                self._stage.copy(step, self._mine(), pack(self._state.own()), reads, then)
        except OSError as error:
            self._broken = f"memory for copies is full: {error.strerror}"
            self._storing.discard(step)
            self._once(f"{self._broken}; no more checkpoints are made, training continues")
        if store:
            self._due.ordered(step, time.monotonic() - begin_s)

    # ---- hearing

    def _hear(self, start: bool = True) -> None:
        for news in self._client.news(start):
            event = news["event"]
            if event in ("sent", "written"):
                self._stage.released(int(news["slot"]), event)
                if event == "written":
                    self._on_its_way = None
                if news.get("why"):
                    self._once(f"no copy on the peer: {news['why']}; training continues")
            elif event == "restarted":
                self._stage.release_all()
                self._storing.clear()
                self._untested.clear()
                if self._on_its_way is not None:
                    self._client.tell(self._on_its_way)
                self._once("the holder of copies had ended and was restarted")
            elif event == "holder_gone":
                self._once(f"no holder of copies: {news['why']}; training continues without checkpoints")
            elif event == "stored":
                self._storing.discard(int(news["step"]))
                self._untested.add(int(news["step"]))
                self._due.stored()
                report.saved(int(news["step"]), str(news["path"]))
            elif event == "good":
                self._untested.discard(int(news["step"]))
            elif event in ("failed", "bad"):
                self._untested.discard(int(news["step"]))
                self._storing.discard(int(news["step"]))
                what = "was not stored" if event == "failed" else "did not pass its restore test"
                self._once(f"step {news['step']} {what}: {news['why']}; training continues", str(news["why"]))

    def _once(self, text: str, key: str = "") -> None:
        if (key or text) not in self._said:
            self._said.add(key or text)
            print(f"unidle checkpoint: rank {self._ranks.rank}: {text}", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        if self._ranks.rank == 0:
            print(f"unidle checkpoint: {text}", file=sys.stderr, flush=True)

    # ---- restoring

    def _offers(self) -> list[back.RestoreOffer]:
        self._bad_on_storage = False

        def bad(text: str) -> None:
            self._bad_on_storage = True
            self._say(text)

        assert self._client.address is not None
        return back.offers(self.directory, self._client.address, bad)

    _bad_on_storage = False

    def _try(self, offer: back.RestoreOffer) -> str | None:
        """Check all of it, then load it; what is wrong with it, the same on every rank, or None."""
        shards: ShardSet | None = None
        problem = ""
        try:
            back.check_part(offer, self._ranks.rank, self._ranks.world)
            shards = back.opened(offer, self._client.hold)
        except (Damaged, OSError) as error:
            problem = str(error)
        if (found := self._first(problem)) is not None:
            return found
        assert shards is not None
        try:
            self._load(shards)
        except (Damaged, OSError, BadInput) as error:
            problem = error.line() if isinstance(error, BadInput) else str(error)
            if isinstance(error, BadInput):
                self._first("\0" + problem)
                raise
        found = self._first(problem)
        if found and found.startswith("\0"):
            raise BadInput(found[1:])
        return found

    def _first(self, problem: str) -> str | None:
        return next((other for other in self._ranks.gather(problem) if other), None)

    def _load(self, shards: ShardSet) -> None:
        rank, same = self._ranks.rank, shards.world == self._ranks.world
        own = unpack(shards.own(rank if same else rank % shards.world))
        saved = shards.wholes()
        suffix = f"@rank{rank % shards.world}"
        mine = {name.removesuffix(suffix): shape for name, shape in saved.items() if name.endswith(suffix)}
        shared = {name: shape for name, shape in saved.items() if "@rank" not in name}
        targets = self._state.targets(shared | mine, own["devices"])
        shards.load_into({(name + suffix if name in mine else name): t for name, t in targets.items()})
        self._state.accept(targets, own, same)
        self._writers = None


def _check(options: Mapping[str, Any], memory_every: int) -> None:
    for name, value, lowest in (
        ("memory_every", memory_every, 0), ("keep", options["keep"], 1), ("keep_every", options["keep_every"], 0),
    ):  # fmt: skip
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise BadInput(
                f"must be a whole number from {lowest} on", field=name, value=value, remedy="change it"
            )
    if options["restore_test"] not in _TESTS:
        raise BadInput(
            "is unknown",
            field="restore_test",
            value=options["restore_test"],
            remedy=f"known: {', '.join(_TESTS)}",
        )


def _identity(directory: str) -> tuple[str, str]:
    """What is wrong with the directory, and its id. Tried, not asked: root may write where the file system may not."""
    try:
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, f".{secrets.token_hex(4)}.tmp")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(path)
        return "", wire.directory_id(directory)
    except OSError as error:
        return error.strerror or str(error), ""

"""One run: clients, controllers and faults, then the drain, and everything that the checker needs."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from histories.check import Violation, check
from histories.nemesis import Controllers, Nemesis
from histories.record import History, Logged, Op, Start, boottime_ns
from histories.stores import AnyStore, made, pause
from unidle.engine.local.ranks import cgroups, process_tree
from unidle.events import types as ev
from unidle.ledger.current import check_batches
from unidle.store import tools
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source
from waiting import wait_until

CLIENT: Final = Path(__file__).with_name("client.py")
DEVICES: Final = 4


@dataclass(frozen=True, slots=True)
class Result:
    """``ops``: by kind and outcome. ``faults``: those that happened."""

    history: History
    violations: list[Violation]
    ops: Counter[str]
    faults: Counter[str]
    events: int


def run(
    kind: str, place: Path, seed: int, *, faults: int, clients: int = 3, operations: int = 40,
    deletes_wal: bool = False, only: tuple[str, ...] = (),
) -> Result:  # fmt: skip
    """One round of so many faults. ``only``: names of faults, one of which it is each time."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("live", "marks", "clients", "files", "held"):
        (place / name).mkdir()
    chance = random.Random(seed)
    with made(kind, place) as store, _processes(place, store) as env:
        controllers = Controllers(place, store, env, DEVICES)
        nemesis = Nemesis(seed, store, controllers, deletes_wal=deletes_wal)
        controllers.serving()
        starts = 0
        for number in range(faults):
            nemesis.clients = [client for client in nemesis.clients if client.poll() is None]
            while len(nemesis.clients) < clients:
                by = "api" if starts % 2 else "cli"
                nemesis.clients.append(
                    _client(place, store, env, f"c{starts}", seed * 1000 + starts, operations, by)
                )
                starts += 1
            pause(chance.uniform(0.2, 1.5))
            nemesis.strike(chance.choice(only) if only else "")
            controllers.keep()
            (place / "faults").write_text("\n".join(nemesis.log))
            del number
        store.heal()
        for client in nemesis.clients:
            client.terminate()
        for client in nemesis.clients:
            client.wait()
        controllers.serving()
        ours = _cancel_the_rest(store)
        controllers.drain()
        history = _gather(place, store, controllers, nemesis, ours)
    (place / "faults").write_text("\n".join(nemesis.log))
    counted = Counter(f"{op.kind} {op.outcome}" for op in history.ops)
    return Result(history, check(history), counted, nemesis.done, len(history.log))


def _client(
    place: Path, store: AnyStore, env: dict[str, str], name: str, seed: int, operations: int, by: str
) -> subprocess.Popen[bytes]:
    words = [place, name, seed, operations, store.address, store.runs, by]
    with (place / f"{name}.err").open("wb") as stderr:
        client = subprocess.Popen(
            [sys.executable, "-P", str(CLIENT), *map(str, words)],
            env=env, stdout=stderr, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    client.name = name  # type: ignore[attr-defined]
    return client


def _cancel_the_rest(store: AnyStore) -> list[Op]:
    """The last client cancels what is left, so that the drain is short."""
    import unidle

    ops = []
    for job in unidle.list_jobs(store=store.address):
        if not job.ended:
            start_ns = boottime_ns()
            job.ask_to_end()
            ops.append(Op("last", "cancel", start_ns, boottime_ns(), "acknowledged", job=job.id))
    return ops


@contextmanager
def _processes(place: Path, store: AnyStore) -> Iterator[dict[str, str]]:
    """The environment of everything that is started; nothing of it outlives the block."""
    token = f"UNIDLE_HISTORY={secrets.token_hex(8)}"
    before = os.environ.get("XDG_DATA_HOME")
    os.environ |= store.env
    name, _, value = token.partition("=")
    try:
        yield {**os.environ, name: value}
    finally:

        def ended() -> bool:
            left = process_tree.with_environment(token)
            process_tree.send(left, signal.SIGKILL)
            process_tree.send(left, signal.SIGCONT)
            return not left

        wait_until(ended, 60, "all processes to end")
        group = cgroups.group_name(str(store.runs))
        for parents in cgroups.own_hierarchies().values():
            for parent in parents:
                wait_until(
                    lambda p=parent: cgroups.remove_tree(f"{p}/{group}"), 60, "the control groups to go"
                )  # type: ignore[misc]
        if before is None:
            os.environ.pop("XDG_DATA_HOME", None)
        else:
            os.environ["XDG_DATA_HOME"] = before


def _gather(
    place: Path, store: AnyStore, controllers: Controllers, nemesis: Nemesis, ours: list[Op]
) -> History:
    opened = open_store(store.address, create=False, read_only=True)
    try:
        log = tuple(Logged(e.seq, e.time_ns, ev.decode(e.kind, e.body, e.seq)) for e in opened.read())
        problems = list(tools.check(opened).problems)
        source = ledger_source(opened, load_view(opened))
        problems += check_batches(source.batches(source.extent()))
    finally:
        opened.close()
    ops = [*ours, *_client_ops(place), *_rank_ops(place), *_exits(store.runs)]
    starts = [
        Start(s["job"], s["attempt"], s["rank"], s["pid"], tuple((j, a, r) for j, a, r in s["found"]))
        for s in _lines(place / "starts")
    ]
    return History(
        tuple(ops), log, tuple(starts), tuple(nemesis.losses), tuple(controllers.ended), tuple(problems)
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _client_ops(place: Path) -> Iterator[Op]:
    """What has a begin and no end was under way when its client was killed."""
    for path in sorted((place / "clients").iterdir()):
        under_way: dict[str, Any] | None = None
        for line in _lines(path):
            if line["what"] == "begin":
                under_way = line
            elif line["what"] == "end":
                under_way = None
                yield _op(path.name, line)
        if under_way is not None:
            yield _op(path.name, {**under_way, "end": 1 << 62, "outcome": "unknown"})


def _op(client: str, line: dict[str, Any]) -> Op:
    return Op(
        client, line["kind"], line["start"], line["end"], line["outcome"], job=line.get("job", ""),
        name=line.get("name", ""), priority=line.get("priority", 0), state=line.get("state", ""),
    )  # fmt: skip


def _rank_ops(place: Path) -> Iterator[Op]:
    for path in sorted((place / "marks").iterdir()):
        job, attempt, rank = path.name.split("@")
        for line in _lines(path):
            yield Op(
                path.name, "mark", line["start"], line["end"], line["outcome"], job=job, attempt=int(attempt),
                rank=int(rank), mark=line["k"], n=line["n"],
            )  # fmt: skip


def _exits(runs: Path) -> Iterator[Op]:
    """Exits in the journals: their supervisors synced them before they ended."""
    for path in sorted(runs.glob("*/*/rank*/journal.jsonl")):
        job, attempt, rank = path.parts[-4], int(path.parts[-3]), int(path.parts[-2].removeprefix("rank"))
        for line in path.read_bytes().split(b"\n")[:-1]:
            mark = json.loads(line)
            if mark["k"] == "exit":
                yield Op(
                    "supervisor", "mark", 0, 0, "acknowledged", job=job, attempt=attempt, rank=rank, mark="exit",
                    n=mark["code"],
                )  # fmt: skip

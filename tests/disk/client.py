"""Submits and cancels jobs as a user's program does, and notes outside of the disk what was acknowledged."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path

import msgspec

from unidle.control.inbox import CancelRequest, SubmitRequest
from unidle.errors import UnidleError
from unidle.files.job import job_from_mapping
from unidle.store.open import open_store
from unidle.store.protocol import Store

RANK = Path(__file__).with_name("rank.sh")
TURN_S, MOST_S = 0.05, 20.0
JOBS = {"job-0": (2, "0.1"), "job-1": (1, "0.05"), "long": (1, "60")}


def submission(job: str, notes: Path) -> bytes:
    ranks, seconds = JOBS[job]
    fields = {
        "name": job, "command": ["sh", str(RANK), str(notes), seconds], "ranks": ranks, "grace_s": 0.5,
        "progress": {"pattern": "^step ([0-9]+)"},
        "restart": {"max": 20, "backoff_s": 0.05, "on": ["lost", "exit", "signal"]},
    }  # fmt: skip
    return msgspec.json.encode(SubmitRequest(job, job_from_mapping(fields, "test", notes)))


def cancellation(job: str) -> bytes:
    return msgspec.json.encode(CancelRequest(job, "test"))


def digest(kind: str, body: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + body).hexdigest()[:16]


class Notes:
    def __init__(self, place: Path) -> None:
        self._file = (place / "client").open("a", buffering=1)

    def add(self, *words: object) -> None:
        self._file.write(" ".join(map(str, words)) + "\n")


def follow(store: Store, notes: Notes, seen: int) -> int:
    """Note each event that is in the log for a reader."""
    for event in store.read(seen):
        notes.add("saw", event.seq, digest(event.kind, event.body))
        seen = event.seq
    return seen


def main(address: str, notes_at: str) -> None:
    """A process of its own. Arguments: the store, the directory of notes."""
    place = Path(notes_at)
    notes = Notes(place)
    with contextlib.suppress(UnidleError):
        open_store(address, create=True).close()
    for job in JOBS:
        ask(address, notes, "submit", job, submission(job, place))
    notes.add("ready")
    seen, cancelled = 0, False
    end = time.monotonic() + MOST_S
    while time.monotonic() < end:
        with contextlib.suppress(UnidleError):
            store = open_store(address, create=False, read_only=True)
            try:
                seen = follow(store, notes, seen)
            finally:
                store.close()
        if not cancelled and (place / "started.long").exists():
            cancelled = ask(address, notes, "cancel", "long", cancellation("long"))
        if (place / "over").exists():
            break
        time.sleep(TURN_S)
    notes.add("done")


def ask(address: str, notes: Notes, kind: str, job: str, body: bytes) -> bool:
    try:
        store = open_store(address, create=False)
        try:
            store.request(kind, body)
            notes.add(kind, job)
        finally:
            store.close()
    except UnidleError as error:
        notes.add("refused", kind, job, error)
        return False
    return True

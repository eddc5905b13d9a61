"""One client: submits and cancels by seed, through the command line or the Python interface, and records each operation.

Arguments: place, its name, seed, operations, store, run root, ``cli`` or ``api``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK = Path(__file__).with_name("rank.py")
REFUSED = (2, 3)
UNIDLE = [sys.executable, "-P", "-m", "unidle"]
MOST_S = 60.0  # of one command; a store that is locked by a process that is stopped takes its time


class Client:
    """``ours``: ids of its jobs that it may cancel."""

    def __init__(self, place: Path, name: str, seed: int, store: str, runs: str, by: str) -> None:
        self.place, self.name, self.store, self.runs, self.by = place, name, store, runs, by
        self.chance = random.Random(seed)
        self.number = 0
        self.ours: list[str] = []
        self.long: list[str] = []

    def act(self) -> None:
        """One operation, with a record before it and one after it."""
        time.sleep(self.chance.uniform(0, 0.4))
        self._hold()
        old = self.long if self.chance.random() < 0.5 else self.ours
        if old and self.chance.random() < 0.35:
            self._cancel(old.pop(self.chance.randrange(len(old))), wait=self.chance.random() < 0.3)
        else:
            self._submit()

    def _hold(self) -> None:
        """While the file ``hold`` is there, no operation is under way."""
        while (self.place / "hold").exists():
            (self.place / "held" / self.name).touch()
            time.sleep(0.02)

    def _submit(self) -> None:
        self.number += 1
        kind = self.chance.choices(["short", "fails", "long", "bad", "large"], [5, 2, 3, 1, 1])[0]
        steps, each_s = (600, 0.05) if kind == "long" else (self.chance.randrange(3, 10), 0.05)
        name = f"{self.name}-{self.number}"
        words = [
            sys.executable,
            "-P",
            RANK,
            self.place,
            self.runs,
            steps,
            each_s,
            1 if kind == "fails" else 0,
        ]
        ranks = {"bad": 0, "large": 1000}.get(kind, self.chance.choice([1, 1, 2]))
        fields: dict[str, Any] = {
            "command": [str(word) for word in words], "name": name, "ranks": ranks, "grace_s": 1,
            "priority": self.chance.randrange(-2, 3), "restart": {"max": 1000, "backoff_s": 0.1, "on": ["any"]},
        }  # fmt: skip
        op = self._begin("submit", name=name, priority=fields["priority"])
        outcome, job = (self._submit_cli if self.by == "cli" else self._submit_api)(fields)
        self._end(op, outcome, job=job)
        if job:
            (self.long if kind == "long" else self.ours).append(job)

    def _submit_cli(self, fields: dict[str, Any]) -> tuple[str, str]:
        file = self.place / "files" / f"{fields['name']}.json"
        file.write_text(json.dumps(fields))
        outcome, answer = self._command("submit", file)
        return outcome, str(answer.get("job", ""))

    def _submit_api(self, fields: dict[str, Any]) -> tuple[str, str]:
        import unidle

        command = fields.pop("command")
        try:
            return "acknowledged", unidle.submit(command, store=self.store, **fields).id
        except unidle.UnidleError as error:
            return self._judged(error.exit_code, str(error)), ""

    def _cancel(self, job: str, *, wait: bool) -> None:
        op = self._begin("cancel", job=job)
        if self.by == "cli":
            outcome, answer = self._command("cancel", job, *([] if wait else ["--no-wait"]))
            state = str(answer.get("state", "")).replace("cancelling", "")
        else:
            outcome, state = self._cancel_api(job, wait=wait)
        self._end(op, outcome, state=state)

    def _cancel_api(self, job: str, *, wait: bool) -> tuple[str, str]:
        import unidle

        try:
            found = unidle.job(job, store=self.store)
            if not wait:
                found.ask_to_end()
                return "acknowledged", ""
            return "acknowledged", str(found.cancel().state)
        except unidle.UnidleError as error:
            return self._judged(error.exit_code, str(error)), ""

    def _command(self, *words: object) -> tuple[str, dict[str, Any]]:
        command = [*UNIDLE, *map(str, words), "--store", self.store, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
        except subprocess.TimeoutExpired:
            return "unknown", {}
        if done.returncode == 0:
            return "acknowledged", json.loads(done.stdout)
        return self._judged(done.returncode, done.stderr), {}

    def _judged(self, code: int, text: str) -> str:
        self._write({"what": "error", "code": code, "text": text[-1500:]})
        return "refused" if code in REFUSED else "unknown"

    def _begin(self, kind: str, **more: object) -> dict[str, Any]:
        op = {"what": "begin", "kind": kind, "start": time.clock_gettime_ns(time.CLOCK_BOOTTIME), **more}
        self._write(op)
        return op

    def _end(self, op: dict[str, Any], outcome: str, **more: object) -> None:
        end_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._write({**op, "what": "end", "end": end_ns, "outcome": outcome, **more})

    def _write(self, what: dict[str, Any]) -> None:
        fd = os.open(self.place / "clients" / self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, json.dumps(what).encode() + b"\n")
        os.close(fd)


def main() -> None:
    place, name, seed, count, store, runs, by = sys.argv[1:8]
    client = Client(Path(place), name, int(seed), store, runs, by)
    for _ in range(int(count)):
        client.act()


if __name__ == "__main__":
    main()

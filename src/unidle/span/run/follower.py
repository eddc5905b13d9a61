"""The launcher of a site that is not the first one: it follows the first site's launcher, and sends it the records of its ranks."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from unidle.errors import CannotRun, UnidleError
from unidle.span.files.train import RunRequest
from unidle.span.model.training import Training
from unidle.span.run.gang import SpanGang
from unidle.span.run.launchers import LauncherChannel, LocalLauncher
from unidle.span.wan import WanError
from unidle.view.jobs import JobView
from unidle.words import counted


def digest_of(wanted: RunRequest) -> str:
    """Of what all launchers have to agree on: everything but paths and hosts."""
    told = {name: value for name, value in asdict(wanted.training).items() if name not in _OWN}
    shares = wanted.shares and asdict(wanted.shares)
    text = json.dumps(
        [told, asdict(wanted.setting), shares, wanted.schedule.name.rpartition(":")[2]],
        default=str,
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


_LAST_WORD_S: Final = 20.0  # how long the first site may take to read the last records
_OWN: Final = frozenset({"build", "data", "loss", "optimizer", "saving", "tls", "hosts", "schedule"})


def placed(plan: dict[str, Any], training: Training) -> dict[str, Any]:
    """A plan with the paths of this host."""
    saving = plan["checkpoint"]
    return {
        **plan,
        "model": {**plan["model"], "build": training.build},
        "data": training.data,
        "loss": training.loss,
        "optimizer": {**plan["optimizer"], "name": training.optimizer},
        "checkpoint": saving
        and {**saving, "directory": training.saving.directory if training.saving else ""},
        "tls": None if training.tls is None else dict(training.tls),
    }


class Follower:
    """What one launcher does turn by turn."""

    def __init__(
        self,
        wanted: RunRequest,
        gang: SpanGang,
        here: LocalLauncher,
        talk: LauncherChannel,
        tell: Callable[[str], None],
    ) -> None:
        self.error: UnidleError | None = None
        self._wanted, self._gang, self._here, self._talk, self._tell = wanted, gang, here, talk, tell
        self._asked = 0
        self._over, self._ended_s = False, 0.0
        talk.send({"file": digest_of(wanted)})

    def turn(self, job: JobView) -> bool:
        """What is new; True once the job has ended."""
        self._here.see(job)
        try:
            for message in self._talk.poll():
                self._hear(message)
        except WanError as error:
            if not self._over and self.error is None:
                self.error = CannotRun(
                    f"the launcher of the first site is gone: {error}",
                    remedy="start all sites again: the run continues from the last checkpoint",
                )
                self._gang.cancel("unidle span run", at_once=True)
        if told := [(record.attempt, record.device, record.body) for record in self._here.records()]:
            self._talk.send({"records": told})
        if self._here.waiting() and job.attempts[-1].number != self._asked:
            self._asked = job.attempts[-1].number
            self._talk.send({"waiting": self._asked, "died": self._here.died()})
        if job.terminal and not self._ended_s:
            self._ended_s = time.monotonic()
        leave = self._over or self.error is not None or job.state != "succeeded"
        return job.terminal and (leave or time.monotonic() > self._ended_s + _LAST_WORD_S)

    def end(self, why: str) -> None:
        """Report why this site's ranks cannot continue; nothing if ``why`` is empty."""
        if why and not self._over:
            self._talk.send({"failed": why})

    def _hear(self, message: dict[str, Any]) -> None:
        if "plan" in message:
            plan = placed(message["plan"], self._wanted.training)
            self._here.begin(int(message["number"]), plan, message["devices"])
            self._tell(f"attempt {message['number']}: {counted(len(plan['devices']), 'device')}")
        elif "stop" in message:
            self._here.stop(int(message["stop"]))
        elif "over" in message:
            self._over = True
            self._here.over()
            if message.get("because"):
                self.error = CannotRun(str(message["because"]))
                self._gang.cancel("unidle span run")

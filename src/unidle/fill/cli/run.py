"""``unidle fill run``: let a filler run in the waits of a job's ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    data_dir,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
)
from unidle.errors import BadInput, CannotRun
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.fill.files.filler_file import FillerRequest
    from unidle.fill.runtime.ranks import FilledRank
    from unidle.fill.runtime.supervise import FillSummary
    from unidle.view.jobs import JobView

RECORDS: Final = "fill.jsonl"
_LOOK_S: Final = 0.2


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="Filler file; `-` reads standard input.")],
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", show_default=False, help="Job whose waits are filled; default: the newest.")
    ] = None,
    pid: Annotated[
        list[int] | None,
        typer.Option("--pid", metavar="PID", show_default=False, help="Instead of a job: a process that trains, or its parent. Repeatable."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", show_default=False, help="With --pid: directory for logs and records.")
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for ranks that show waits.")] = 60.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the order of the trial's blocks.")] = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Run a filler in the waits of a job on this machine.

    It ends with the job, or when its work is done."""
    from unidle.cli.run import caught
    from unidle.fill.files.filler_file import load_filler

    wanted = load_filler(file)
    if job is not None and pid:
        raise BadInput("cannot be used together", field="--job, --pid", remedy="leave one out")
    if out is not None and not pid:
        raise BadInput("is for processes", field="--out", value=out, remedy="add --pid, or leave it out")
    tell: Callable[[str], None] = (lambda _: None) if as_json else say
    with caught() as signals:
        here = _Here(wanted, seed, wait_s, lambda: bool(signals.interrupts or signals.terminates), tell)
        code = here.of_processes(pid, Path(out or ".")) if pid else here.of_job(job, store)
    if as_json:
        print_json(here.totals())
    else:
        here.show()
    sys.exit(code)


@dataclass(slots=True)
class _Here:
    """Fillers on this machine, one supervisor for each attempt of the job."""

    wanted: FillerRequest
    seed: int
    wait_s: float
    interrupted: Callable[[], bool]
    tell: Callable[[str], None]
    done: list[FillSummary] = field(default_factory=list)

    def of_processes(self, pids: list[int], directory: Path) -> int:
        from unidle.fill.runtime.ranks import check_pid

        for each in pids:
            check_pid(each)
        directory.mkdir(parents=True, exist_ok=True)
        ranks = self._ranks(dict(enumerate(pids)), lambda: False)
        return self._fill(ranks, directory, None)

    def of_job(self, name: str | None, store: str | None) -> int:
        """Follows the job through its attempts."""
        from unidle.control.store_files import run_root

        opened = read_store(store)
        wanted = need_job(read_view(opened), name, live=True).id
        directory = run_root(opened, data_dir()) / wanted
        number, code = 0, 0
        until = time.monotonic() + self.wait_s
        while not self.interrupted():
            view = read_view(opened).jobs[wanted]
            if view.terminal:
                if not self.done:
                    raise CannotRun(
                        f"the job has {view.state}",
                        field="--job",
                        value=wanted,
                        remedy="name a job that runs",
                    )
                break
            attempt = view.live
            pids = {k: rank.pid for k, rank in enumerate(attempt.ranks) if rank.pid} if attempt else {}
            if attempt is None or attempt.number == number or len(pids) < len(attempt.ranks):
                if not number and time.monotonic() > until:
                    raise CannotRun(
                        "no rank of the job runs",
                        field="--job",
                        value=wanted,
                        remedy="wait until it has started",
                    )
                time.sleep(_LOOK_S)
                continue
            number = attempt.number
            ranks = self._ranks(pids, lambda: _changed(read_view(opened).jobs[wanted], number))  # noqa: B023
            if ranks:
                code = self._fill(ranks, directory, number)
                if self.done[-1].ended == "all fillers ended":
                    break
        return code

    def _ranks(self, pids: dict[int, int], over: Callable[[], bool]) -> list[FilledRank]:
        """Those that were requested, once all show their waits. Errors: BadInput, CannotRun."""
        from unidle.fill.runtime.ranks import FilledRank, rank_below

        chosen = self.wanted.ranks if self.wanted.ranks is not None else tuple(pids)
        for number in chosen:
            if number not in pids:
                raise BadInput(
                    "is no rank of it", field="ranks", value=number, remedy=f"0 to {len(pids) - 1}"
                )
        if self.wanted.order.by_kernel:
            return [rank_below(k, pids[k]) or FilledRank(k, pids[k], None) for k in chosen]
        until = time.monotonic() + self.wait_s
        while True:
            found = [rank for number in chosen if (rank := rank_below(number, pids[number])) is not None]
            if len(found) == len(chosen):
                return found
            if over() or self.interrupted():
                return []
            if time.monotonic() > until:
                missing = [number for number in chosen if number not in {rank.number for rank in found}]
                raise CannotRun(
                    f"rank {missing[0]} shows no waits", field="--job", remedy="call unidle.rank.waiting() in its script, or use `windows: kernel`"
                )  # fmt: skip
            time.sleep(_LOOK_S)

    def _fill(self, ranks: list[FilledRank], directory: Path, attempt: int | None) -> int:
        from unidle.fill.runtime.supervise import FillSupervisor
        from unidle.fill.runtime.trial import Trial

        shown = any(rank.board is not None for rank in ranks)  # else there are no steps to compare
        trial = Trial(seed=self.seed + (attempt or 0)) if self.wanted.trial and shown else None
        name = self.wanted.order.filler
        self.tell(f"filler {name} next to {counted(len(ranks), 'rank')}; records in {directory / RECORDS}")
        found = FillSupervisor(
            self.wanted.order, ranks, directory, directory / RECORDS, trial, self.tell
        ).run(self.interrupted)
        self.done.append(found)
        return 1 if found.failed else 0

    def totals(self) -> dict[str, Any]:
        """Sums over all attempts, for machines."""
        sums: dict[str, Any] = {}
        for found in self.done:
            for word, value in found.sums.items():
                sums[word] = sums.get(word, 0) + value
        waits = sum(found.forecast["waits"] for found in self.done)
        error = sum(found.forecast["early_ns"] + found.forecast["unused_ns"] for found in self.done)
        waited = sums.get("waited_ns", 0)
        return sums | {
            "filled": sums["filled_ns"] / waited if waited else None,
            "bubble_left_ns": max(waited - sums["filled_ns"] - sums["discarded_ns"], 0) if waited else None,
            "forecast": {
                "waits": waits, "ended_early": sum(found.forecast["early"] for found in self.done),
                "mean_error_ms": error / waits / 1e6 if waits else None,
            },
            "failed": [text for found in self.done for text in found.failed],
            "endings": [text for found in self.done for text in found.endings],
            "ended": self.done[-1].ended if self.done else "no rank",
        }  # fmt: skip

    def show(self) -> None:
        """The same as a page."""
        found = self.totals()
        if not self.done:
            return
        part = (
            f", {100 * found['filled']:.1f} % of the waits of {found['waited_ns'] / 1e9:.2f} s"
            if found["filled"] is not None
            else ""
        )
        say(
            f"{found['pieces']:,} pieces, {found['units']:,} units: {found['filled_ns'] / 1e9:.2f} s useful{part};"
            f" {found['discarded_ns'] / 1e9:.2f} s discarded"
        )
        error = found["forecast"]
        if error["waits"]:
            say(
                f"Forecast of {error['waits']:,} waits: mean error {error['mean_error_ms']:.2f} ms, {error['ended_early']:,} ended early."
            )
        if found["skipped"] > found["pieces"]:
            say(
                f"{found['skipped']:,} times the next piece did not fit: make pieces shorter, or `piece_ms` longer."
            )
        for text in found["failed"]:
            say(f"failed: {text}")
        say(f"over: {found['ended']}")


def _changed(job: JobView, number: int) -> bool:
    return job.live is None or job.live.number != number

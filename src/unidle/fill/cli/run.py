"""``unidle fill run``: let a filler run in the waits of a job's ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    need_job,
    print_json,
    read_store,
    read_view,
    say,
)
from unidle.engine.local.ranks.rundir import FILLS
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.fill.files.filler_file import FillerRequest
    from unidle.fill.runtime.ranks import FilledRank
    from unidle.fill.runtime.supervise import FillSummary


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
        from unidle.fill.cli.job_ranks import showing
        from unidle.fill.runtime.ranks import check_pid

        for each in pids:
            check_pid(each)
        directory.mkdir(parents=True, exist_ok=True)
        wanted, every = self.wanted, dict(enumerate(pids))
        ranks = showing(wanted.ranks, every, self.wait_s, self.interrupted, by_kernel=wanted.order.by_kernel)
        return self._fill(ranks, directory, None)

    def of_job(self, name: str | None, store: str | None) -> int:
        """Follows the job through its attempts."""
        from unidle.fill.cli.job_ranks import JobRanks, alone, directory_of

        opened = read_store(store)
        job = need_job(read_view(opened), name, live=True).id
        found = JobRanks(
            opened, job, self.wanted.ranks, self.wanted.order.by_kernel, self.wait_s, self.interrupted
        )
        directory, code = directory_of(opened, job), 0
        if not found.started():
            return code
        with alone(directory, job):
            while (ranks := found.following()) is not None:
                if ranks:
                    code = self._fill(ranks, directory, found.number)
                    if self.done[-1].ended == "all fillers ended":
                        break
        return code

    def _fill(self, ranks: list[FilledRank], directory: Path, attempt: int | None) -> int:
        from unidle.fill.runtime.supervise import FillSupervisor
        from unidle.fill.runtime.trial import Trial

        shown = any(rank.board is not None for rank in ranks)  # else there are no steps to compare
        trial = Trial(seed=self.seed + (attempt or 0)) if self.wanted.trial and shown else None
        name = self.wanted.order.filler
        self.tell(f"filler {name} next to {counted(len(ranks), 'rank')}; records in {directory / FILLS}")
        found = FillSupervisor(self.wanted.order, ranks, directory, directory / FILLS, trial, self.tell).run(
            self.interrupted
        )
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
        if found["waited_ns"]:
            late, delayed = (100 * found[word] / found["waited_ns"] for word in ("late_ns", "delayed_ns"))
            say(
                f"Of the waits, {late:.1f} % passed before the first piece, and {delayed:.1f} % while a piece had no free core."
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

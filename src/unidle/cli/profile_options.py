"""The options of ``unidle profile``: one field each, with its help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from unidle.cli import complete
from unidle.cli.common import JsonOption, StoreOption
from unidle.cli.job_words import ranks_of
from unidle.cli.times import duration_option
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.cli.profile_history import Question

Form = Literal["html", "speedscope", "pprof", "folded", "perfetto", "chrome", "otlp", "json"]
LookTier = Literal["T0", "T1", "T2", "T3"]


_PAST: Final = ("since", "until", "attempt", "against", "against_rank", "against_attempt")
_LONGEST_PID: Final = 9  # digits
_MOST_RANKS: Final = 1_000_000
_FLAGS: Final = {"target": "PID|JOB", "imports": "--import", "memory": "--allocations"}


def _flag_of(name: str) -> str:
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"


def _option(name: str, metavar: str, text: str, **more: Any) -> Any:
    return typer.Option(*name.split(), metavar=metavar or None, help=text, show_default=False, **more)


def _flag(name: str, text: str) -> Any:
    return typer.Option(*name.split(), help=text, show_default=False)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. The order of the fields is that of the help."""

    # fmt: off
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="PID|JOB", show_default=False, autocompletion=complete.jobs,
            help="A process with its children, or a job that runs on this machine. Default: the newest job that runs.",
        ),
    ] = None
    seconds: Annotated[float, duration_option("--seconds", text="Duration: 30 (seconds), 5m; default: 10.", least=0.1, most=86400, show_default=False)] = 10
    hz: Annotated[int, _option("--hz", "N", "Samples per second of each busy CPU; default: 99.", min=1, max=1000)] = 99
    top: Annotated[bool, _flag("--top", "Show the last seconds repeatedly, until Ctrl-C.")] = False
    off_cpu: Annotated[bool, _flag("--off-cpu/--no-off-cpu", "Include waiting threads; default: yes.")] = True
    children: Annotated[bool, _flag("--children/--no-children", "Include child processes; default: yes.")] = True
    memory: Annotated[bool, _flag("--allocations --memory", "Trace allocations with probes; costs more.")] = False
    operators: Annotated[bool, _flag("--operators", "Count operators with probes; costs more.")] = False
    tier: Annotated[LookTier | None, _option("--tier", "T0|T1|T2|T3", "Sampling method; default: the best that works here.")] = None
    rank: Annotated[str | None, _option("--rank", "K[,K...]", "Only these ranks of a job, such as 0,2 or 0-3; of a past profile, one rank.")] = None
    rules: Annotated[str | None, _option("--rules", "FILE", "Rules that take precedence over unidle's own.")] = None
    form: Annotated[
        Form | None,
        _option("--format", "html|speedscope|pprof|folded|perfetto|chrome|otlp|json", "Write a flame graph page, or a file for another tool."),
    ] = None
    out: Annotated[
        str | None,
        _option("--out -o", "FILE", "File for the output; default: standard output. Its suffix may name the format."),
    ] = None
    saved: Annotated[
        str | None,
        _option("--from", "FILE", "Show a profile from --format json, torch.profiler, nsys, NCCL Inspector, py-spy, austin or perf script."),
    ] = None
    imports: Annotated[
        list[str] | None,
        _option("--import", "FILE", "Add device activity of the same time from such a file; may be repeated."),
    ] = None
    injection: Annotated[bool, _flag("--injection", "Print the environment variables with which a program records its GPU kernels.")] = False
    since: Annotated[
        str | None,
        _option("--since", "TIME", "Show what `unidle up --profile` recorded since then: 1h, 2026-01-31T12:00."),
    ] = None
    until: Annotated[str | None, _option("--until", "TIME", "End of the time that is shown; default: now.")] = None
    attempt: Annotated[int | None, _option("--attempt", "N", "Show what was recorded of this attempt.", min=1)] = None
    against: Annotated[str | None, _option("--against", "TIME..TIME|FILE", "Compare with another window, such as 2h..1h; with --from, with another saved profile.")] = None
    against_rank: Annotated[int | None, _option("--against-rank", "K", "Compare --rank with this rank.", min=0)] = None
    against_attempt: Annotated[int | None, _option("--against-attempt", "N", "Compare --attempt with this attempt.", min=1)] = None
    store: StoreOption = None
    as_json: JsonOption = False
    # fmt: on

    @property
    def is_process(self) -> bool:
        """Whether the target is a process number; a longer one can only be the name of a job."""
        target = self.target
        return target is not None and target.isdecimal() and len(target) <= _LONGEST_PID

    @property
    def is_past(self) -> bool:
        """Whether it is about what was kept of a job: an option that means it is there (a rank alone does not)."""
        return self.saved is None and bool(self._given(_PAST))

    def check(self) -> None:
        """Errors: BadInput where options mean different things."""
        if self.injection:
            others = [
                one.name
                for one in fields(self)
                if one.name not in ("injection", "store") and getattr(self, one.name) != one.default
            ]
            self._alone("--injection", tuple(others))
        if self.saved is not None:
            past = tuple(name for name in _PAST if name != "against")
            self._alone("--from", ("target", "top", "tier", "rank", "memory", "operators", *past))
        if self.tier == "T3" and self.saved is None:
            raise BadInput(
                "reads files of other profilers", field="--tier", value="T3", remedy="give one with --from"
            )
        if self.is_past:
            if self.is_process:
                raise BadInput(
                    "is a process; profiles are stored only for jobs", field="PID|JOB", value=self.target,
                    remedy="name the job; `unidle list` shows the jobs",
                )  # fmt: skip
            self._alone(_flag_of(self._given(_PAST)[0]), ("top", "tier", "memory", "operators", "imports"))

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """The ranks that are chosen. Errors: BadInput."""
        return None if self.rank is None else ranks_of("--rank", self.rank, _MOST_RANKS)

    def look(self) -> dict[str, Any]:
        """What :func:`unidle.scope.tiers.watch` takes next to the processes."""
        return {
            "hz": self.hz, "off_cpu": self.off_cpu, "follow": self.children, "operators": self.operators,
            "memory": self.memory, "tier": self.tier,
        }  # fmt: skip

    def question(self) -> Question:
        """The part that is about what was kept of a job."""
        from unidle.cli.profile_history import Question

        ranks = self.ranks
        if ranks is not None and len(ranks) != 1:
            raise BadInput(
                "is one rank where the past is shown", field="--rank", value=self.rank, remedy="name one"
            )
        return Question(
            self.target, self.store, self.since, self.until, self.attempt, ranks[0] if ranks else None,
            self.against, self.against_rank, self.against_attempt,
        )  # fmt: skip

    def _given(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, False, [])]

    def _alone(self, flag: str, others: tuple[str, ...]) -> None:
        for other in self._given(others):
            raise BadInput(
                "cannot be used together", field=f"{flag}, {_flag_of(other)}", remedy="leave one out"
            )

"""The options that replays share; among them what a replay assumes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from unidle.cli.common import cannot_write
from unidle.cli.times import duration_option
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.control.replay.workload import Assumptions, Estimates
    from unidle.store.protocol import Store


_MOST_H: Final = 1_000_000  # a time that the clock can count, and no infinity
_LEAST_MTBF_H: Final = 0.01
LONGEST_S: Final = 10 * 365 * 86_400


def _option(name: str, metavar: str, text: str, **more: Any) -> Any:
    return typer.Option(*(f"--{one}" for one in name.split()), metavar=metavar, help=text, **more)


def seconds_option(name: str, text: str) -> Any:
    """A duration of a replay, under ``name`` and the names that it had."""
    return duration_option(*(f"--{one}" for one in name.split()), text=text, most=LONGEST_S)


PolicyOption = Annotated[
    str,
    _option("policy", "NAME[,NAME...]", "Placement policies to compare: unidle, firstfit, bestfit, spread."),
]
SaveOption = Annotated[
    str | None,
    _option(
        "save", "DIR", "Keep each replay as a store, DIR/NAME.db.",
        show_default=False,
    ),
]  # fmt: skip
QueueMap = Annotated[
    str | None,
    _option(
        "queue-map", "OLD=NEW[,...]", "Put jobs of queue OLD into queue NEW.",
        show_default=False,
    ),
]  # fmt: skip
ModelMap = Annotated[
    str | None,
    _option(
        "model-map", "OLD=NEW[,...]", "Let jobs for GPU model OLD run on model NEW.",
        show_default=False,
    ),
]  # fmt: skip


def stop_after_option(name: str) -> Any:
    """The end of a replay, under ``name`` and the names that it had."""
    text = "Stop H hours after the first submission."
    return _option(name, "H", text, min=0, max=_MOST_H, show_default=False)


StopAfter = Annotated[float | None, stop_after_option("stop-after until")]


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a replay assumes, as it is given: see :class:`unidle.control.replay.workload.Assumptions`."""

    # fmt: off
    estimates: Annotated[
        str,
        _option(
            "estimates", "none|exact[,FACTOR]|learned",
            "Run times that policies use: the jobs' own estimates, the true run times, or those of similar "
            "jobs.",
        ),
    ] = "learned"
    checkpoint_every: Annotated[float, seconds_option("checkpoint-every", "Work between two checkpoints: 1800 (seconds), 30m; 0: none.")] = 1800.0
    checkpoint_write: Annotated[float, seconds_option("checkpoint-write", "Time that a gang waits for a checkpoint.")] = 0.0
    restart: Annotated[float, seconds_option("restart", "Start-up time of each attempt after the first.")] = 60.0
    restore: Annotated[float, seconds_option("restore", "Time to read a checkpoint.")] = 30.0
    stop: Annotated[float, seconds_option("stop", "Time that a gang needs to stop.")] = 0.0
    saves_on_stop: Annotated[bool, typer.Option("--saves-on-stop", help="A gang saves its last step before it stops.")] = False
    communication: Annotated[
        float,
        _option(
            "communication", "PART",
            "Part of a step that is communication between nodes. Gangs on the same uplink slow each other.",
            min=0, max=1,
        ),
    ] = 0.0
    mtbf: Annotated[float, _option("mtbf", "H", "Mean time between faults of a node in hours; 0: none.", min=0, max=_MOST_H)] = 0.0
    mttr: Annotated[float, _option("mttr", "H", "Mean time of a repair in hours.", min=0.001, max=_MOST_H)] = 1.0
    seed: Annotated[int, _option("seed", "N", "Seed of the random faults.")] = 1
    # fmt: on

    def checked(self) -> Assumptions:
        """Errors: BadInput."""
        from unidle.control.replay.workload import Assumptions

        kind, factor = _estimates(self.estimates)
        if not self.checkpoint_every.is_integer():
            raise BadInput("must be whole seconds", field="--checkpoint-every", value=f"{self.checkpoint_every:g}", remedy="for instance 1800 or 30m")  # fmt: skip
        if 0 < self.mtbf < _LEAST_MTBF_H:
            raise BadInput("is too short for a node to do useful work", field="--mtbf", value=self.mtbf, remedy=f"give 0, or at least {_LEAST_MTBF_H:g} hours")  # fmt: skip
        return Assumptions(
            checkpoint_every_s=self.checkpoint_every,
            checkpoint_s=self.checkpoint_write,
            restart_s=self.restart,
            restore_s=self.restore,
            stop_s=self.stop,
            saves_on_stop=self.saves_on_stop,
            comm_ppm=round(self.communication * 1e6),
            mtbf_s=self.mtbf * 3600,
            mttr_s=self.mttr * 3600,
            seed=self.seed,
            estimates=kind,
            estimate_factor=factor,
        )


_ESTIMATES: Final[dict[str, Estimates]] = {"none": "none", "exact": "exact", "learned": "learned"}


def _estimates(text: str) -> tuple[Estimates, float]:
    """``learned``, ``none``, ``exact`` or ``exact,1.5``."""
    kind, comma, times = text.partition(",")
    if kind == "exact" and comma:
        try:
            factor = float(times)
        except ValueError:
            factor = math.nan
        if 0 < factor <= 1000:
            return "exact", factor
    elif text in _ESTIMATES:
        return _ESTIMATES[text], 1.0
    raise BadInput(
        "is not a kind of estimate", field="--estimates", value=text,
        remedy="write none, exact, exact,FACTOR (above 0, at most 1000) or learned",
    )  # fmt: skip


def policies(text: str) -> list[str]:
    """The names in ``a,b,c``, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def renames(text: str | None, option: str) -> dict[str, str]:
    """``a=b,c=d`` as names and what to read instead of them."""
    found: dict[str, str] = {}
    for part in (text or "").split(",") if text is not None else ():
        old, equals, new = (word.strip() for word in part.partition("="))
        if not (old and equals and new) or old in found:
            raise BadInput(
                "is not a list of OLD=NEW", field=option, value=text,
                remedy="write OLD=NEW, or OLD=NEW,OLD=NEW, each OLD once",
            )  # fmt: skip
        found[old] = new
    return found


def whole_numbers(text: str, option: str, *, least: int, most: int) -> list[int]:
    """``1,2,3``: whole numbers from ``least`` to ``most``, each once."""
    found: dict[int, None] = {}
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19 and least <= int(digits) <= most):
            remedy = f"write N, or N,N,...; each from {least} to {most:,}"
            raise BadInput("is not a list of whole numbers", field=option, value=text, remedy=remedy)
        found[int(digits)] = None
    return list(found)


def store_of_replay(save: str | None, name: str) -> Store:
    """A new store for one replay: ``save/name.db``, or none that is kept."""
    from unidle.store.memory import ForgetfulStore
    from unidle.store.open import open_store

    if save is None:
        return ForgetfulStore()
    path = Path(save) / f"{name}.db"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write("--save", save, error) from error
    if path.exists():
        raise BadInput("the store of a replay is there already", field="--save", value=str(path), remedy="remove it, or name another place")  # fmt: skip
    return open_store(str(path), create=True)

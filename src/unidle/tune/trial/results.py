"""What a run of ``unidle tune run`` found: each change with its verdict, and those that are kept together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.measure import SpeedUp
from unidle.tune.trial.race import TimedSteps
from unidle.tune.trial.sampled import SampledProfile
from unidle.tune.trial.verify import Verdict

if TYPE_CHECKING:
    from unidle.tune.endpoint.client import ModelClient

AGENT: Final = "agent"
"""The code of changes that a model proposed."""


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change with its verdict; ``speedup`` is None where it was not measured. ``cpu`` is the ratio of CPU times."""

    change: TuneChange
    patch: str
    verdict: Verdict
    why: str
    speedup: SpeedUp | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class TuneRun:
    """``control`` is the ratio of two equal programs. ``stack`` has the changes that are kept together; ``model`` proposed those of the code ``agent``.

    ``before`` and ``after`` are profiles of the program as it is and with the stack.
    """

    baseline: TrialRun
    window: TimedSteps = field(default_factory=TimedSteps)
    control: SpeedUp | None = None
    tried: tuple[TriedChange, ...] = ()
    stack: tuple[TuneChange, ...] = ()
    speedup: SpeedUp | None = None
    patch: str = ""
    model: str = ""
    before: SampledProfile = field(default_factory=SampledProfile)
    after: SampledProfile = field(default_factory=SampledProfile)
    waited: float | None = None
    """The share of the measured time in which the program was ready and another one had the CPU; None if nothing was measured."""

    @property
    def steps(self) -> int:
        """Steps of the optimizer in the program."""
        return self.baseline.marks[-1].step if self.baseline.marks else 0


@dataclass(frozen=True, slots=True)
class ModelRounds:
    """The model that proposes changes, and in how many rounds at most."""

    client: ModelClient
    rounds: int

    @property
    def name(self) -> str:
        """Of the model."""
        return self.client.endpoint.model

"""What fills the waits, and how: ours and reconstructions of others, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from unidle.fill.model.prefill import InferenceModel
from unidle.fill.policy.controller import PieceRules
from unidle.fill.policy.forecast import LEAST_NS, ForecastRules, quantile_for
from unidle.fill.simulate.filler import YieldRules


@dataclass(frozen=True, slots=True)
class FillPolicy:
    """``quantile``: of a forecast; None: that for how long a piece can hold training up. ``reconstructed``: of another system, from its paper."""

    name: str
    what: str
    pieces: PieceRules = field(default_factory=PieceRules)
    quantile: float | None = None
    guarded: bool = True
    learned: bool = True
    least_ns: int = LEAST_NS
    yields: YieldRules = field(default_factory=YieldRules)
    reconstructed: bool = False

    def forecast(self, model: InferenceModel, tokens: int, *, exact: bool) -> ForecastRules:
        """``tokens``: the longest prompt; ``exact``: waits are as planned, and short ones are known, too."""
        most = min(self.pieces.chunk_tokens or tokens, tokens)
        piece = model.layer_ns(max(tokens - most, 0), tokens)
        way = self.yields.gives_way_ns
        hold = piece if way is None else min(piece, way)
        quantile = quantile_for(hold) if self.quantile is None else self.quantile
        return ForecastRules(quantile, 0 if exact else self.least_ns, self.guarded, self.learned)


POLICIES: Final = {
    each.name: each
    for each in (
        FillPolicy("unidle", "chunks of a prompt, a layer at a time, in waits forecast with a guard band"),
        FillPolicy("no-guard", "the same without a guard band, with the median of the last waits", quantile=0.5, guarded=False, least_ns=0),
        FillPolicy("whole", "the same with whole prompts: a stage's part of one is not cut", PieceRules(None, whole_stage=True)),
        FillPolicy(
            "pipefill", "PipeFill-like: pieces planned from profiled lengths of waits, which run to their end",
            PieceRules(512), 0.5, guarded=False, learned=False, least_ns=0, yields=YieldRules(None), reconstructed=True,
        ),
        FillPolicy(
            "freeride", "FreeRide-like: whole steps (a chunk on a stage) where the profiled rest of a wait holds one",
            PieceRules(512, whole_stage=True), 0.5, guarded=False, learned=False, least_ns=0, yields=YieldRules(None),
            reconstructed=True,
        ),
    )
}  # fmt: skip

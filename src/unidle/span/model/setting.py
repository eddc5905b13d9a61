"""What is trained where: sites, stages, pipelines, links, memory. Checked where it is read, `span/files/setting.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from unidle.span.model.cost import SaveTimes, ring_ns
from unidle.span.model.link import Path, WanLink, shortest


@dataclass(frozen=True, slots=True)
class Site:
    """A data centre that holds ``stages`` consecutive stages of every pipeline."""

    name: str
    stages: int
    gpus: int | None = None
    price_per_gpu_hour: float = 0.0
    revocations_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of any pipeline: nanoseconds for one microbatch, and bytes.

    ``kept_bytes``: what the backward pass of one microbatch needs in addition to the stage's input, made again by
    ``recompute_ns`` unless it is kept. ``gradient_bytes``: what pipelines reduce at the end. ``input_bytes``: what
    enters it, None for the setting's own; ``static_bytes``: what its device holds in addition to the setting's.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int
    recompute_ns: int = 0
    kept_bytes: int = 0
    gradient_bytes: int = 0
    input_bytes: int | None = None
    static_bytes: int = 0

    @property
    def useful_ns(self) -> int:
        return self.forward_ns + self.backward_ns + self.weight_ns


@dataclass(frozen=True)
class Setting:
    """A whole setting. Without ``links`` communication is free.

    ``input_bytes``: of one microbatch at each cut whose stage has no value of its own.
    ``cell``: pipelines that share their links in time. ``chunks``: parts of a stage, for ``interleaved`` alone.
    ``local_gbps``: of a node inside its site, None takes no time. ``one_flow``: baselines use a single flow.
    ``wide``: nodes of all stages of a site may send for one of them, which a real run does not do.
    """

    stages: tuple[Stage, ...]
    microbatches: int
    sites: tuple[Site, ...]
    links: tuple[WanLink, ...] = ()
    pipelines: int = 1
    cell: int = 1
    input_bytes: int = 0
    static_bytes: int = 0
    memory_cap_bytes: int | None = None
    local_gbps: float | None = None
    one_flow: bool = False
    chunks: int = 2
    saving: SaveTimes | None = None
    wide: bool = True

    @cached_property
    def site_of(self) -> tuple[int, ...]:
        """The site of each stage, as an index into ``sites``."""
        return tuple(k for k, site in enumerate(self.sites) for _ in range(site.stages))

    @property
    def baseline_flows(self) -> int | None:
        return 1 if self.one_flow else None

    @property
    def revocations_per_hour(self) -> float:
        """Of all devices together."""
        return sum(site.stages * self.pipelines * site.revocations_per_hour for site in self.sites)

    @property
    def devices(self) -> int:
        return self.pipelines * len(self.stages)

    def device(self, pipeline: int, stage: int) -> str:
        """``site/pipeline/stage``."""
        return f"{self.sites[self.site_of[stage]].name}/{pipeline}/{stage}"

    def path(self, stage: int, other: int) -> Path | None:
        """The WAN between two stages; None inside a site, and where communication is free."""
        a, b = self.site_of[stage], self.site_of[other]
        if a == b or not self.links:
            return None
        return self._paths[min(a, b), max(a, b)]

    @property
    def local(self) -> float | None:
        """Gbit/s inside a site, None where communication is free."""
        return self.local_gbps if self.links else None

    def reduce_ns(self, stage: int) -> int:
        """The all-reduce of a stage over all pipelines."""
        return ring_ns(self.stages[stage].gradient_bytes, self.pipelines, self.local)

    def held_bytes(self, stage: int) -> int:
        """What a device of the stage holds whatever it does."""
        return self.static_bytes + self.stages[stage].static_bytes

    def entering_bytes(self, stage: int, chunk: int = 0) -> int:
        """One microbatch at the entry of a stage; where the model comes around to the first one, the largest cut."""
        return self._cuts[stage] if stage or not chunk else self._around

    def crossing_bytes(self, stage: int, to: int) -> int:
        """Bytes of one transfer between two stages, the same in both directions."""
        return self._cuts[max(stage, to)] if abs(stage - to) == 1 else self._around

    @cached_property
    def even(self) -> bool:
        """Whether all cuts carry as many bytes."""
        return all(stage.input_bytes is None for stage in self.stages[1:])

    @cached_property
    def _cuts(self) -> tuple[int, ...]:
        given = (stage.input_bytes for stage in self.stages)
        return tuple(self.input_bytes if size is None else size for size in given)

    @property
    def largest_cut_bytes(self) -> int:
        """One microbatch where most of it passes between two stages."""
        return self._around

    @cached_property
    def _around(self) -> int:
        return max(self._cuts[1:], default=self._cuts[0])

    @cached_property
    def _paths(self) -> dict[tuple[int, int], Path | None]:
        names = [site.name for site in self.sites]
        return {
            (a, b): _direct(self.links, names[a], names[b]) or shortest(self.links, names[a], names[b])
            for b in range(len(names))
            for a in range(b)
            if b == a + 1 or (a == 0 and b == len(names) - 1)
        }


def _direct(links: tuple[WanLink, ...], a: str, b: str) -> Path | None:
    return next((Path((link,)) for link in links if {link.a, link.b} == {a, b}), None)

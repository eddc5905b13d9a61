"""Sites and links that a run does without, and which of them could be used again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from unidle.span.model.setting import Setting
from unidle.span.replan.survivors import cut_off
from unidle.words import listed

Sites = frozenset[str]
Pairs = frozenset[Sites]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """``sites`` that are left out, and ``links`` of sites that do not reach each other."""

    sites: Sites = frozenset()
    links: Pairs = frozenset()

    def __bool__(self) -> bool:
        return bool(self.sites or self.links)

    def __str__(self) -> str:
        apart = [sorted(pair) for pair in self.links if not pair & self.sites]
        return listed([*sorted(self.sites), *(f"the link of {a} and {b}" for a, b in sorted(apart))])


@dataclass(slots=True)
class AbsentSites:
    """What is absent from one run. ``whole``: its setting with all sites; ``devices``: all its ranks, ``site/pipeline/stage``.

    ``again``: what would still be absent after the next checkpoint; None if no site answers again.
    """

    whole: Setting
    devices: Collection[str]
    gone: Unreachable = field(default_factory=Unreachable)
    again: Unreachable | None = None
    _heard: dict[str, Sites] = field(default_factory=dict)

    def begin(self) -> None:
        """A new attempt: no device on standby has tried to reach others yet."""
        self._heard, self.again = {}, None

    def leave_out(self, sites: Iterable[str]) -> None:
        self.gone = Unreachable(self.gone.sites | frozenset(sites), self.gone.links)

    def with_all(self, sites: Sites) -> Unreachable:
        """What would be gone with these sites again, whichever others they reach."""
        links = frozenset(pair for pair in self.gone.links if not pair & sites)
        return Unreachable(self.gone.sites - sites, links)

    def cut(self, setting: Setting, a: str, b: str) -> Sites:
        """The link of two sites is gone: the lighter part of what ran is left out, until its devices say whom they reach."""
        lighter = cut_off(
            setting.links, [site.name for site in setting.sites], a, b, [site.stages for site in setting.sites]
        )  # fmt: skip
        self.gone = Unreachable(self.gone.sites | lighter, self.gone.links | {frozenset((a, b))})
        return frozenset(lighter)

    def asked(self, device: str, working: Iterable[str]) -> list[str]:
        """The devices that one on standby tries to reach: of each site at work, the nearest of its pipeline in the whole plan."""
        _, pipeline, stage = device.split("/")
        nearest: dict[str, tuple[int, str]] = {}
        for name in working:
            site, other, at = name.split("/")
            if other == pipeline:
                found = (abs(int(at) - int(stage)), name)
                nearest[site] = min(nearest.get(site, found), found)
        return [name for _, name in nearest.values()]

    def hear(self, device: str, reached: Iterable[str]) -> None:
        """Record which devices answered one on standby."""
        self._heard[device] = frozenset(name.split("/")[0] for name in reached)

    def ways_back(self) -> Iterator[Unreachable]:
        """What would be gone with those that answer at work again: all of them first, then each alone."""
        answering = {site: found for site in self.gone.sites if (found := self._answered(site))}
        here = {site.name for site in self.whole.sites} - self.gone.sites
        for back in dict.fromkeys((frozenset(answering), *(frozenset([name]) for name in sorted(answering)))):
            if back:
                known = {frozenset((site, other)) for site in back for other in here}
                apart = {frozenset((site, other)) for site in back for other in here - answering[site]}
                yield Unreachable(self.gone.sites - back, (self.gone.links - known) | (apart & self._used()))

    def _answered(self, site: str) -> Sites:
        """The sites at work that answer all devices of one that was left out."""
        told = [self._heard.get(name, Sites()) for name in self.devices if name.split("/")[0] == site]
        return frozenset.intersection(*told)

    def _used(self) -> Pairs:
        """Pairs of sites that any plan may use; others need not reach each other."""
        near = {frozenset((a.name, b.name)) for a, b in pairwise(self.whole.sites)}
        return frozenset(near | {frozenset((link.a, link.b)) for link in self.whole.links})

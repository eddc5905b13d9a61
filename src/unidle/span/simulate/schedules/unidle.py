"""Ours: gradients of weights fill the waits for a WAN; depth, memory and the sharing of links are searched together.

Memory that the cap leaves keeps activations, which saves their recompute. What is tried begins with the programs of
the other schedules (in large settings ATLAS's and ZB-H1's), so that the result is never slower than those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Filler, LinkShare, Program, depth_order
from unidle.span.simulate.routes import widest
from unidle.span.simulate.schedules.base import (
    LinkSpacing,
    Try,
    depths,
    is_large,
    pace,
    whole_depth,
    within_memory,
)
from unidle.span.simulate.schedules.published import atlas, atlas_keep, gpipe, one_f_one_b, varuna, zb_h1

ALL: Final = float("inf")
_SCALES: Final = (1.0, ALL, 0.5, 2.0, 1.5, 0.0, 0.75, 3.0)
_PUT_OFF: Final = (0, 1, 2, 4, 8)
_SLACK: Final = (0.5, 0.999)
_PIECES: Final = (1, 2, 8, 16)
_MORE: Final = (-1, 1, 2)
_WORK: Final = 400_000  # operations of one kind over all trials
_TRIALS: Final = (3, 150)
_AT_ONCE: Final = 60_000  # microbatches times devices that are tried side by side


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a program is made from; memory may grant less.

    ``more``: in flight in addition to those by ``scale``; ``joined``: the trip that it scales is that of a whole backward.
    ``keep_first``: rather fewer in flight than recompute. ``put_off``: gradients of weights that wait at most.
    ``slack``: the part of one by which it may not fit.
    """

    share: LinkShare
    scale: float = 1.0
    more: int = 0
    joined: bool = False
    keep_first: bool = True
    put_off: int = 1 << 30
    slack: float = 0.0


def unidle(setting: Setting, attempt: Try) -> Program:
    """The best that a search over few wishes finds."""
    size = len(setting.stages) * setting.microbatches * setting.cell
    search = _Search(setting, attempt, int(np.clip(_WORK // size, *_TRIALS)))
    for program in _others(setting, attempt):
        search.take(program)
    search.wishes(_beginnings(setting))
    before = None
    while search.least != before and search.left and not is_large(setting):
        before = search.least
        search.wishes(_changes(search.wished))
    return search.best


def _others(setting: Setting, attempt: Try) -> list[Program]:
    """What the other schedules would do with as many flows; ours is never slower than these."""
    many = replace(setting, one_flow=False)
    chosen = {"atlas": atlas, "zb-h1": zb_h1}
    if not is_large(setting):
        chosen |= {"atlas-keep": atlas_keep, "varuna": varuna, "1f1b": one_f_one_b, "gpipe": gpipe}
    made = {name: choose(many, attempt) for name, choose in chosen.items()}
    return [
        replace(program, label=f"{name}: {program.label}", max_flows=True) for name, program in made.items()
    ]


def _beginnings(setting: Setting) -> list[_Wish]:
    """The likeliest first; in large settings those alone, and none with few in flight, which would take long to try."""
    shares = _shares(setting)
    if is_large(setting):
        other = _Wish(shares[-1], joined=len(shares) > 1, keep_first=False)
        return [_Wish(shares[0], scale, joined=True, keep_first=False) for scale in (1.0, ALL)] + [other]
    return [
        _Wish(share, scale, joined=joined, keep_first=keep_first)
        for scale in _SCALES[:6]
        for joined in (False, True)
        for share in shares
        for keep_first in (True, False)
    ]


class _Search:
    def __init__(self, setting: Setting, attempt: Try, left: int) -> None:
        self._setting, self._attempt = setting, attempt
        self.left = left
        self._seen: set[_Wish] = set()
        self._made: set[tuple[object, ...]] = set()
        self._paces: dict[tuple[LinkShare, bool], LinkSpacing] = {}
        self._at_once = max(_AT_ONCE // (len(setting.stages) * setting.microbatches * setting.cell), 1)
        self.least: int | None = None
        self.wished: _Wish = _Wish(_shares(setting)[0])
        self._least_wish: int | None = None
        self.best: Program

    def take(self, program: Program) -> bool:
        """Keep it where it is the first or faster."""
        length = self._attempt(program)
        if not hasattr(self, "best") or (length is not None and (self.least is None or length < self.least)):
            self.best, self.least = program, length
        return length is not None

    def wishes(self, wishes: Sequence[_Wish]) -> None:
        """Try them; the search continues from the best wish, even while ATLAS's program is faster."""
        tried = [(wish, program) for wish in wishes if (program := self._new(wish)) is not None]
        lengths = self._lengths([program for _, program in tried])
        for (wish, program), length in zip(tried, lengths, strict=True):
            if length is None:
                continue
            if self._least_wish is None or length < self._least_wish:
                self._least_wish, self.wished = length, wish
            if self.least is None or length < self.least:
                self.best, self.least = program, length

    def _new(self, wish: _Wish) -> Program | None:
        """Its program, where there was none like it."""
        if wish in self._seen or not self.left:
            return None
        self._seen.add(wish)
        program = self._program(wish)
        key = (wish.share, wish.slack, program.order.tobytes(), program.again.tobytes(), _most(program))
        if key in self._made:
            return None
        self._made.add(key)
        self.left -= 1
        return program

    def _program(self, wish: _Wish) -> Program:
        key = (wish.share, wish.joined)
        if key not in self._paces:
            self._paces[key] = pace(self._setting, wish.share, max_flows=True, joined=wish.joined)
        return _program(self._setting, wish, self._paces[key])

    def _lengths(self, programs: list[Program]) -> list[int | None]:
        """Run programs that share links in the same way in one batch; stop one that is slower than the best wish so far."""
        found: list[int | None] = [None] * len(programs)
        limit = self._least_wish
        alike: dict[LinkShare, list[int]] = {}
        for k, program in enumerate(programs):
            alike.setdefault(program.share, []).append(k)
        for those in alike.values():
            for first in range(0, len(those), self._at_once):
                batch = those[first : first + self._at_once]
                lengths = self._attempt.many(
                    [programs[k] for k in batch], None if limit is None else limit + 1
                )
                for k, length in zip(batch, lengths, strict=True):
                    found[k] = length
                limit = min((each for each in (limit, *lengths) if each is not None), default=None)
        return found


def _most(program: Program) -> bytes:
    return program.filler.most.tobytes() if program.filler else b""


def _changes(wish: _Wish) -> list[_Wish]:
    made = [replace(wish, scale=scale) for scale in _SCALES]
    made += [replace(wish, keep_first=not wish.keep_first, scale=scale) for scale in (1.0, ALL)]
    made += [replace(wish, more=wish.more + more) for more in _MORE]
    made += [replace(wish, put_off=count) for count in _PUT_OFF]
    made += [replace(wish, slack=slack) for slack in _SLACK]
    if wish.share.how == "turns":
        made += [replace(wish, share=replace(wish.share, pieces=pieces)) for pieces in _PIECES]
    return made


def _shares(setting: Setting) -> list[LinkShare]:
    """Ways to use the links that differ in this setting."""
    cuts = [s for s in range(len(setting.stages) - 1) if setting.path(s, s + 1) is not None]
    wide = any(widest(setting, s, s + 1) > 1 for s in cuts)
    found = [LinkShare()]
    if cuts and setting.cell > 1:
        found.insert(0, LinkShare("turns", pieces=4))
    if wide:
        found.insert(0, LinkShare("turns", wide=True, pieces=4))
    return found


def _program(setting: Setting, wish: _Wish, at: LinkSpacing) -> Program:
    depth = depths(setting, at, wish.scale, wish.more)
    if wish.keep_first:
        depth = whole_depth(setting, depth)
    most, again = within_memory(setting, depth, wish.put_off)
    weight = np.array([stage.weight_ns for stage in setting.stages], dtype=np.int64)
    filler = Filler(most, (weight * wish.slack).astype(np.int64))
    order = depth_order(depth, setting.microbatches)
    empty = np.zeros((0, 0), dtype=np.int64)
    kept = 1 - float(again.mean())
    share = f"{'wide ' if wish.share.wide else ''}{wish.share.how}" + (
        f" in {wish.share.pieces}" if wish.share.how == "turns" else ""
    )
    label = f"{share}, up to {int(depth[0])} in flight, {kept:.0%} kept, {int(min(most.max(), setting.microbatches))} put off"
    return Program(label, order, again, empty, early=True, filler=filler, max_flows=True, share=wish.share)

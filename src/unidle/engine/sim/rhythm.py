"""How steps, copies and saves of an undisturbed gang follow each other, in closed form. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

_ENDLESS: Final = 1 << 62


class Stand(NamedTuple):
    """How far a gang has come: complete steps, those that a save or a copy in memory holds, and its stalls.

    ``saved_stall_ns`` ended with the last save, ``copied_stall_ns`` with the last copy after it, and
    ``stall_ns`` is of a save or copy that is under way.
    """

    steps: int
    saved: int
    copied: int
    saved_stall_ns: int
    copied_stall_ns: int
    stall_ns: int


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Steps of ``step_ns``; every ``copy_every`` a copy, every ``save_every`` a save (0: none), for which all wait.

    ``save_every`` is a multiple of ``copy_every``; where both fall together the copy comes first.
    """

    step_ns: int
    save_every: int = 0
    save_ns: int = 0
    copy_every: int = 0
    copy_ns: int = 0

    @property
    def _group(self) -> int:
        return self.copy_every or self.save_every or _ENDLESS

    @property
    def _group_ns(self) -> int:
        return self._group * self.step_ns + (self.copy_ns if self.copy_every else 0)

    @property
    def cycle_ns(self) -> int:
        """From the end of one save to that of the next."""
        if not self.save_every:
            return _ENDLESS * self.step_ns
        return self.save_every // self._group * self._group_ns + self.save_ns

    def at(self, elapsed_ns: int) -> Stand:
        """How far the gang is ``elapsed_ns`` after its first step began."""
        cycles, rest_ns = divmod(max(elapsed_ns, 0), self.cycle_ns)
        groups = rest_ns // self._group_ns
        saving = bool(self.save_every) and groups >= self.save_every // self._group
        if saving:
            groups = self.save_every // self._group
        rest_ns -= groups * self._group_ns
        alone = 0 if saving else min(rest_ns // self.step_ns, self._group)
        stall_ns = rest_ns if saving else max(rest_ns - self._group * self.step_ns, 0)
        saved = cycles * self.save_every
        done = saved + groups * self._group
        copy_ns = self.copy_ns if self.copy_every else 0
        return Stand(
            done + alone,
            saved,
            done if self.copy_every else 0,
            cycles * (self.cycle_ns - self.save_every * self.step_ns) if self.save_every else 0,
            groups * copy_ns,
            stall_ns,
        )

    def since(self, step: int) -> int:
        """When step ``step`` (from 1) is complete, in ns after the first one began."""
        cycles, rest = divmod(step - 1, self.save_every or _ENDLESS)
        groups, rest = divmod(rest, self._group)
        return cycles * self.cycle_ns + groups * self._group_ns + (rest + 1) * self.step_ns

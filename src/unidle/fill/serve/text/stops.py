"""Stop strings in text that arrives in parts."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Text up to the first stop string. What may be the begin of one is held back until that is decided."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """What can be shown now of all text so far. After a hit it is always empty."""
        if not self._stops or self.hit:
            return "" if self.hit else text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """At the end of the text: what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The longest end of the text that begins the stop string."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

"""Lines of a rank's journal as marks of the log."""

from __future__ import annotations

import msgspec

from unidle.engine.local.ranks.mark_forms import RawMarks
from unidle.events.marks import Mark

_DECODER = msgspec.json.Decoder(Mark)
_ENCODER = msgspec.json.Encoder()


class EventMarks(RawMarks):
    """Marks as :class:`~unidle.events.marks.Mark`."""

    def decode(self, line: bytes) -> Mark:
        try:
            return _DECODER.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ValueError(str(error)) from None

    def encode(self, mark: Mark) -> bytes:
        return _ENCODER.encode(mark)

    def make(self, kind: str, t_ns: int, text: str, info: dict[str, bool] | None = None) -> Mark:
        return Mark(k=kind, t=t_ns, text=text, info=None if info is None else dict(info))

    def facts(self, mark: Mark) -> tuple[str, int, int | None, int | None]:
        return mark.k, mark.t, mark.pid, mark.ticks

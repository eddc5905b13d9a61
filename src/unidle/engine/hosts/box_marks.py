"""Marks as boxes send them: decoded, and the ends that boxes write themselves moved to where they can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from unidle.engine.hosts.gang_state import RankState
from unidle.events.marks import Mark

_DECODER: Final = msgspec.json.Decoder(Mark)


def timed_marks(rank: RankState, lines: Sequence[msgspec.Raw], now_ns: int) -> list[Mark]:
    """Marks of a rank, of lines that came now. A line that is no mark becomes a ``note``.

    A box that has not had the orders of a rank writes its end with the wall clock of its host, which may be wrong: such
    an end is no earlier than the mark before it, and no later than now.
    """
    found = []
    last_ns = rank.at_ns if rank.begun else now_ns
    for line in lines:
        mark = _decoded(line, now_ns)
        if mark.k == "lost":
            mark = msgspec.structs.replace(mark, t=min(max(mark.t, last_ns), now_ns))
        found.append(mark)
        last_ns = mark.t
    return found


def _decoded(line: msgspec.Raw, now_ns: int) -> Mark:
    try:
        return _DECODER.decode(line)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:  # the hub does not look into marks
        return Mark(k="note", t=now_ns, text=f"a line of the journal cannot be read: {error}")

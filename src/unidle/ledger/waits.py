"""What a rank waits for, laid over its time: how far its pod has come, and that it does not answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from unidle.ledger.profiled_causes import CauseInterval

UNSEEN: Final = "unseen"
_WAITS: Final = frozenset(
    {"pod_binding", "volume_mount", "image_pull", "container_start", "gang_wait", "start"}
)


def phased(
    pieces: Iterable[CauseInterval], phases: Sequence[tuple[int, int, str]]
) -> Iterator[CauseInterval]:
    """What waits for the gang while the rank's own pod is not there yet is what the pod waits for."""
    for piece in pieces:
        if piece.leaf != "gang_wait":
            yield piece
            continue
        at = piece.start_ns
        for start, end, leaf in phases:
            a, b = max(start, at), min(end, piece.end_ns)
            if a < b:
                yield piece._replace(start_ns=at, end_ns=a)
                yield piece._replace(start_ns=a, end_ns=b, leaf=leaf, observer="control")
                at = b
        yield piece._replace(start_ns=at)


def silent(
    pieces: Iterable[CauseInterval], silences: Sequence[tuple[int, int]], gone: int
) -> Iterator[CauseInterval]:
    """While the rank did not answer, what no mark proves is silence. Marks that came later prove it, too."""
    for piece in pieces:
        guessed = piece.how == "inferred" or piece.leaf in _WAITS
        if piece.step >= 0 or not guessed or piece.leaf == UNSEEN:
            yield piece
            continue
        at = piece.start_ns
        for start, end in silences:
            a, b = max(start, at), min(end, gone, piece.end_ns)
            if a < b:
                yield piece._replace(start_ns=at, end_ns=a)
                yield CauseInterval(a, b, "silent", -1, "measured", "control")
                at = b
        yield piece._replace(start_ns=at)

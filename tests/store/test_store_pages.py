"""The log is read in pages, larger ones after small bodies: no event is lost or repeated at a border."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.store.open import open_store
from unidle.store.protocol import NewEvent


@pytest.mark.parametrize("large", [(), (0,), (255, 256), (300, 1_279, 1_280)])
@pytest.mark.parametrize("count", [256, 257, 1_280, 1_281, 2_400])
def test_a_log_is_read_whole_over_the_borders_of_pages(
    tmp_path: Path, count: int, large: tuple[int, ...]
) -> None:
    given = [
        NewEvent(k + 1, "control", k, "sighted", b"{%s}" % (b" " * (600_000 if k in large else 1)))
        for k in range(count)
    ]
    store = open_store(str(tmp_path / "store"), create=True)
    store.append(store.acquire("test"), given)
    assert [tuple(event[1:]) for event in store.read()] == given
    assert [event.seq for event in store.read(after=count - 3)] == [count - 2, count - 1, count]
    assert [event.seq for event in store.read(limit=1_100)] == list(range(1, min(count, 1_100) + 1))
    store.close()

"""Which ranks of a job a look is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.api.profiling import ranks_of
from unidle.errors import CannotRun
from unidle.events import types as ev
from unidle.jobs import RankPlace, Reason
from unidle.store.open import open_store
from view.telling import Telling


def test_a_job_that_starts_is_not_taken_for_one_of_another_machine(tmp_path: Path) -> None:
    telling = Telling(2).submit("j")
    telling.tell(ev.AttemptPlaced("j", 1, (RankPlace(0, "n0", ("n0/0",)),), Reason("test", "because")))
    store = open_store(str(tmp_path / "s.db"), create=True)
    try:
        with pytest.raises(CannotRun, match="none of its ranks runs yet"):
            ranks_of(store, telling.job("j"), None)
        telling.mark("j", 0, "spawn", pid=1)
        with pytest.raises(CannotRun, match="no rank of it runs on this machine now"):
            ranks_of(store, telling.job("j"), None)
    finally:
        store.close()

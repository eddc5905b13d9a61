"""One job of a store, read repeatedly: each call reads only new events of the log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from unidle.api.stores import read_store, without_password
from unidle.errors import CannotRun

if TYPE_CHECKING:
    from types import TracebackType

    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView
    from unidle.view.state import View

LOOK_S: Final = 0.05
_HOLDER_EVERY_S: Final = 1.0
_UNSERVED_S: Final = 5.0


class JobWatch:
    """Errors: :class:`unidle.errors.StoreError` where the store cannot be read."""

    def __init__(self, address: str, job: str) -> None:
        self.store: Store = read_store(address)
        self._address, self.job = address, job
        self._view: View | None = None
        self._asked_s = float("-inf")
        self._free_since_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.store.close()

    def news(self) -> JobView | None:
        """The job as it is now; None until a controller has taken it from the inbox."""
        from unidle.view.fold import fold
        from unidle.view.snapshot import load_view

        if self._view is None:
            self._view = load_view(self.store)
        else:
            fold(self._view, self.store.read(after=self._view.seq))
        return self._view.jobs.get(self.job)

    @property
    def view(self) -> View:
        """As of the last read."""
        if self._view is None:
            self.news()
        assert self._view is not None
        return self._view

    def ended(self) -> JobView | None:
        """The job once it has ended. Errors: :class:`CannotRun` where no controller has run on its store for some seconds."""
        job = self.news()
        if job is not None and job.terminal:
            return job
        self.is_free()
        if self._free_since_s is not None and time.monotonic() - self._free_since_s > _UNSERVED_S:
            raise CannotRun(
                "no controller runs on this job's store, so it cannot start or end", field=self.job,
                remedy=f"start a controller: `unidle up --store {without_password(self._address)}`",
            )  # fmt: skip
        return None

    def is_free(self) -> bool:
        """Whether no controller runs on the store. Checked once a second; False in between."""
        now = time.monotonic()
        if now - self._asked_s < _HOLDER_EVERY_S:
            return False
        self._asked_s = now
        if self.store.holder() is not None:
            self._free_since_s = None
            return False
        self._free_since_s = self._free_since_s or now
        return True

"""What `unidle up --standby` does while another controller serves the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unidle.cli.live import Live
    from unidle.cli.run import Signals
    from unidle.gateway.server import CallServer
    from unidle.store.protocol import Store

LOOK_S: Final = 0.2
_TRY_S: Final = 2.0
"""So often the store is taken in earnest, whatever its holder looks like: one that is stopped lives."""


class Standby:
    """Waits between two tries to take the store. ``commands``: where it answers probes meanwhile, if anywhere.

    SIGTERM and Ctrl-C end the process.
    """

    def __init__(self, store: Store, signals: Signals, live: Live, commands: str) -> None:
        self._store, self._signals, self._live, self._commands = store, signals, live, commands
        self._holder = ""
        self._server: CallServer | None = None

    def __call__(self, problem: str) -> None:
        """``problem``: who has the store. Errors: StoreError where it does not answer."""
        if not self._holder:
            self._get_ready()
        if problem != self._holder:
            self._holder = problem
            self._live.hint(f"standing by: the store {problem}")
        until_s = time.monotonic() + _TRY_S
        while time.monotonic() < until_s:
            if self._signals.interrupts or self._signals.terminates:
                raise SystemExit(130 if self._signals.interrupts else 0)
            time.sleep(LOOK_S)
            if self._store.holder() is None:
                return

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _get_ready(self) -> None:
        """Do what can be done before: imports take most of a second."""
        import unidle.control.kube
        import unidle.gateway.open  # noqa: F401
        from unidle.gateway.standby import open_standby

        if self._commands:
            self._server = open_standby(self._commands)

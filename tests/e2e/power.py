"""A machine that can lose its power: one disk for store and journals, `unidle up` in a new boot after each cut."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from e2e.gangs import view_of
from unidle.drill.disk import Disk
from unidle.drill.testbed import another_boot
from unidle.engine.local.ranks import cgroups, process_tree
from unidle.store.open import open_store
from unidle.store.sql import SqlStore
from unidle.view.state import View
from waiting import wait_until

# the machine's own log would report how the cut is made, and the check before a start reads it
FLEET = """\
nodes: [{{id: n1, devices: {{count: 4, kind: cpu}}, watch: {{kernel_log: {place}/kernel.log}}}}]
guard: {{preflight: "off"}}
"""


class PowerMachine:
    """``place`` keeps what a cut does not reach; the disk is ``place/disk``. Needs root."""

    def __init__(self, place: Path) -> None:
        self.place, self._token = place, f"UNIDLE_POWER={secrets.token_hex(8)}"
        self.disk = Disk(place / "disk", place / "disk.img", 128 << 20, journaled=True)
        self.store = self.disk.place / "s.db"
        self.fleet = place / "fleet.yaml"
        self.fleet.write_text(FLEET.format(place=place))
        (place / "kernel.log").touch()
        self.boots = 0
        self.up: subprocess.Popen[bytes] | None = None
        open_store(str(self.store), create=True).close()
        self.disk.sync()

    def start(self, *more: str) -> None:
        """`unidle up`, in another boot than before."""
        self.boots += 1
        command = [sys.executable, "-P", "-m", "unidle", "up", "--store", str(self.store)]
        command += ["--fleet", str(self.fleet), "--progress", "off", *more]
        name, _, value = self._token.partition("=")
        env = {**os.environ, name: value, "BOOT": str(self.boots)}
        with (self.place / "up.txt").open("ab") as said:
            self.up = subprocess.Popen(
                another_boot(self.place / "boot_id", command), env=env, stdout=said, stderr=said
            )

    def kill_controller(self) -> None:
        """Ranks and supervisors go on."""
        assert self.up is not None
        self.up.kill()  # unshare and sh became it
        self.up.wait()

    def cut(self, *, long: bool = True) -> None:
        """The power fails, and comes back; nothing runs. ``long``: it was off for longer than a lease of the store."""
        self.disk.cut()
        self._end()
        self.disk.mount_again()
        if long:
            store = open_store(str(self.store), create=False)
            assert isinstance(store, SqlStore)
            store.writer.set(store.writer.read(), expires_ns=0)
            store.close()

    def view(self) -> View:
        return view_of(self.store)

    def said(self) -> str:
        return (self.place / "up.txt").read_text()[-2000:]

    def close(self) -> None:
        self._end()
        for group in self._groups():
            wait_until(lambda path=group: cgroups.remove_tree(path), 60, f"{group} to go")  # type: ignore[misc]
        self.disk.close()

    def _end(self) -> None:
        def ended() -> bool:
            left = process_tree.with_environment(self._token)
            process_tree.send(left, signal.SIGKILL)
            return not left

        wait_until(ended, 60, "all processes to end")
        if self.up is not None:
            self.up.wait()

    def _groups(self) -> Iterator[str]:
        name = cgroups.group_name(f"{self.store}.d/runs")
        for parents in cgroups.own_hierarchies().values():
            yield from (f"{parent}/{name}" for parent in parents)

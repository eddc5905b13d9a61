"""``scripts/kube down``: end every process, then remove links, control groups and files.

Nothing of it depends on how far ``up`` came, or on what has ended by itself: processes are found by their control group,
interfaces by their names, and mounts and namespaces end with their last process.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from kube_cluster import groups, machine, network, state
from kube_cluster.layout import OWN_ENTRIES, Layout, folder_of
from unidle.errors import BadInput, UnidleError


def down(given: Path | None) -> None:
    """Take the cluster of a directory down; where none is, say so. Errors: CannotRun, InUse, UnidleError."""
    machine.check_root()
    layout = Layout(folder_of(given))
    begun = time.monotonic()
    if not layout.folder.is_dir():
        # its directory may have been removed by hand while it ran
        ended, links = take_down(layout)
    else:
        _check(layout)
        with state.locked(layout):
            ended, links = take_down(layout)
    took = time.monotonic() - begun
    if ended or links:
        print(f"kube: {ended} processes ended, all removed in {took:.1f} s", file=sys.stderr)
    else:
        print(f"kube: no cluster runs in {layout.folder}", file=sys.stderr)


def _check(layout: Layout) -> None:
    """Errors: BadInput for a directory that is not of a cluster: nothing of it is removed."""
    if layout.state.exists() or (layout.folder / "lock").exists() or groups.exists(layout.group):
        return
    raise BadInput(
        "has no cluster (no cluster.json)",
        field="--dir",
        value=str(layout.folder),
        remedy="name the directory that was given to scripts/kube up",
    )


def take_down(layout: Layout, *, keep_logs: bool = False) -> tuple[int, int]:
    """Remove everything; how many processes and interfaces that were. ``keep_logs``: ``logs`` stays, and what it is in."""
    ended = groups.remove(layout.group)
    links = network.remove(layout)
    if not layout.folder.is_dir():
        return ended, links
    kept = {"logs", "lock"} if keep_logs else set()
    for name in sorted(set(OWN_ENTRIES) - kept):
        _remove(layout.folder / name)
    for entry in layout.folder.iterdir():
        if state.is_draft(entry.name):
            _remove(entry)
    if not keep_logs and not any(layout.folder.iterdir()):
        layout.folder.rmdir()
    return ended, links


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UnidleError(f"{path} cannot be removed: {error.strerror}") from error

"""Return probes replace return addresses on the stack: the stacks are as if there were none."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from scope_native.compiled import compiled, offsets
from scope_native.programs import running
from scope_native.returns import return_probes
from unidle.scope.tiers import look
from waiting import wait_until

pytestmark = needs.ebpf

SOURCE = """
#include <unistd.h>
long innermost(long n) { volatile long s = 0; for (long i = 0; i < n; i++) s += i; return s; }
long probed(long n) { return innermost(n) + 1; }
long waits(void) { return usleep(30000) + 1; }
long recursive(int deep, long n) { return deep ? recursive(deep - 1, n) + 1 : probed(n) + waits(); }
long caller(long n) { return recursive(2, n) + 2; }
"""
TAIL = ["loop", "caller", "recursive", "recursive", "recursive"]


@pytest.mark.parametrize("state", ["on", "off"])
def test_callers_of_functions_with_return_probes_are_kept(tmp_path: Path, state: str) -> None:
    library = compiled(SOURCE, tmp_path / "libreturns.so", "-shared", "-fPIC", "-fomit-frame-pointer")
    program = (
        f"import ctypes\nlibrary = ctypes.CDLL({str(library)!r})\n"
        "def loop():\n    while True:\n        library.caller(20_000_000)\n"
        "print('ready', flush=True)\nloop()\n"
    )
    probes = offsets(library, ["probed", "waits", "recursive", "innermost"])
    with running(program) as process, return_probes(process.pid, library, probes):
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "[uprobes]" in maps.read_text(), what="the probe's trampoline")
        profile = look([process.pid], 1.5)
    leaf, above = ("innermost", ["probed"]) if state == "on" else ("waits", [])
    known = {*TAIL, "probed", "innermost", "waits"}
    rows = [
        [f.function for f in profile.stack(s.stack) if f.function in known]
        for s in profile.samples
        if s.state == state and s.count
    ]
    # A sample may fall into the start or the end of a call, where fewer frames stand: those that reach the leaf count.
    assert {tuple(row) for row in rows if row and row[-1] == leaf} == {(*TAIL, *above, leaf)}
    assert profile.quality.rooted_pct >= 99
    assert profile.quality.merge_mismatch_pct <= 1

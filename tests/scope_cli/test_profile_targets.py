"""Which processes a look is told of, where processes start and end meanwhile."""

from __future__ import annotations

import subprocess
import sys

import needs
from unidle.scope.targets import of_process
from unidle.scope.tiers import watch
from waiting import wait_until

# A child that ends when it is told to; its parent stays.
PARENT = """
import subprocess, sys
print("ready", flush=True)
subprocess.run(["cat"], stdin=sys.stdin)
print("ended", flush=True)
import signal
signal.pause()
"""


@needs.ebpf
def test_a_child_that_ends_before_it_is_watched_does_not_end_the_look() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "ready\n"
            target = wait_until(lambda: (t := of_process(parent.pid)).pids[1:] and t, 60, "its child")
            parent.stdin.close()
            assert parent.stdout.readline() == "ended\n"
            with watch(target.roots) as watched:
                assert watched.run(0.05) == 1
        finally:
            parent.kill()

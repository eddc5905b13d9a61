"""What a blocked thread waits in, by name."""

from __future__ import annotations

import pytest

import needs
from scope_native.programs import running
from unidle.scope.tiers import look

pytestmark = needs.ebpf

WAITS = {
    "sleep": "time.sleep(100)",
    "futex": "threading.Lock().acquire() and threading.Event().wait()",
    "read pipe": "os.read(os.pipe()[0], 1)",
    "recv unix": "import socket; pair = socket.socketpair(); pair[0].recv(1)",
    "recv tcp": (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); "
        "c.recv(1)"
    ),
    "accept": "import socket; socket.create_server(('127.0.0.1', 0)).accept()",
    "epoll_wait": "import select; select.epoll().poll()",
    "select": "import select; r, _ = os.pipe(); select.select([r], [], [])",
    "poll": "import select; select.poll().poll()",
    "wait child": "os.waitpid(os.posix_spawn('/bin/sleep', ['sleep', '100'], {}), 0)",
    "signal": "import signal; signal.sigwait({signal.SIGUSR1})",
    "lock file": (
        "import fcntl, tempfile; f = tempfile.TemporaryFile(); fcntl.flock(f, 2); "
        "g = open(f'/proc/self/fd/{f.fileno()}', 'r+b'); fcntl.flock(g, 2)"
    ),
    "read eventfd": "os.eventfd_read(os.eventfd(0))",
    "write pipe": "w = os.pipe()[1]; os.write(w, bytes(1 << 20))",
}


@pytest.mark.parametrize("wait", WAITS)
def test_the_leaf_of_a_blocked_thread_names_its_wait(wait: str) -> None:
    source = f"def wait():\n    {WAITS[wait]}\nprint('ready', flush=True)\nwait()\n"
    with running(source) as process:
        profile = look([process.pid], 0.4, follow=False)
    blocked = [s for s in profile.samples if s.state == "off"]
    longest = max(blocked, key=lambda s: s.ns)
    leaf = profile.stack(longest.stack)[-1]
    assert (leaf.kind, leaf.function) == ("wait", wait)

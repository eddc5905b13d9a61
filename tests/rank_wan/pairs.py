"""Two endpoints of one run on the loopback, and what is left of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unidle.span.wan import Channel, Endpoint, Settings

SECRET = b"of this test"
QUICK = Settings(flows=4, chunk_bytes=64 << 10, heartbeat_s=0.05, dead_s=1.0, backoff_s=0.01, give_up_s=60)


@contextlib.contextmanager
def pair(
    settings: Settings = QUICK,
    there: Settings | None = None,
    via: Any = None,
    tls: tuple[Any, Any] = (None, None),
) -> Iterator[tuple[Channel, Channel]]:
    """Channels of ``a``, which connects, and ``b``; ``via`` makes a relay from the address of ``b``."""
    with contextlib.ExitStack() as stack:
        b = Endpoint(
            "b",
            run="r",
            secret=SECRET,
            listen=("127.0.0.1", 0),
            settings=there or settings,
            tls_server=tls[0],
        )
        stack.callback(b.close, 1)
        assert b.address is not None
        address = stack.enter_context(via(b.address)).address if via else b.address
        a = Endpoint("a", run="r", secret=SECRET, settings=settings, tls_client=tls[1])
        stack.callback(a.close, 1)
        one, other = a.connect("b", address, tls_name="localhost"), b.accept("a")
        one.wait_open(10)
        other.wait_open(10)
        yield one, other


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate())


def sockets() -> int:
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(fd.readlink()))
    return sum(link.startswith("socket:") for link in links)

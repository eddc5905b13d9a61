"""Return probes, set as any tracer sets them: by the kernel's own counters, without a program of ours."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
_UPROBE = Path("/sys/bus/event_source/devices/uprobe/type")
_SIZE = 112  # of struct perf_event_attr, up to and with aux_watermark
_RETURN = 1  # bit 0 of `config`: where the function returns


@contextmanager
def return_probes(pid: int, library: Path, offsets: Sequence[int]) -> Iterator[None]:
    """Return probes on the functions at these offsets of a file, in all threads of one process."""
    path = ctypes.create_string_buffer(bytes(library))
    libc = ctypes.CDLL(None, use_errno=True)
    opened: list[int] = []
    try:
        for offset in offsets:
            for task in Path(f"/proc/{pid}/task").iterdir():
                attribute = bytearray(_SIZE)
                struct.pack_into("<IIQ", attribute, 0, int(_UPROBE.read_text()), _SIZE, _RETURN)
                struct.pack_into("<QQ", attribute, 56, ctypes.addressof(path), offset)
                raw = (ctypes.c_char * _SIZE).from_buffer(attribute)
                fd = libc.syscall(_PERF_EVENT_OPEN, raw, int(task.name), -1, -1, 8)
                if fd < 0:
                    raise OSError(ctypes.get_errno(), f"perf_event_open: {os.strerror(ctypes.get_errno())}")
                opened.append(fd)
        yield
    finally:
        for fd in opened:
            os.close(fd)

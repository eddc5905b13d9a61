"""A record of a job that has ended, in few bytes: those of one store are similar, and a snapshot holds all of
them.
"""

from __future__ import annotations

import zlib
from typing import Final

_USUAL: Final = (
    b'\x83\xa4rank\x00\xa4node\xa6slices\x91\xa7local/0\x83\xa4code\xa9first_fit\xa4text\xb9first node vm with 1 free'
    b'\xa7figures\x82\xa5nodes\x01\xa7devices\x01\x91\xa5lines\x90\x90\x8a\xa6cpu_ns\xaapeak_bytes\xce\xa3oom'
    b'\xc2\xa9log_bytes\xcc\xb1log_dropped_bytes\x00\xb1log_dropped_lines\x00\xa7stopped\xc2\xafpressure_cpu_us'
    b'\xb2pressure_memory_us\x00\xaepressure_io_us\x00\x90\xa9succeeded\x83\xa4code\xa4done\xa4text\xa8exited 0'
    b'\xa7figures\x80\xa6failed\xa9cancelled\xde\x00"\xa7command\xa4name\xa5train\xa7workdir\xa3env\x80\xa5ranks\x01'
    b'\xb0devices_per_rank\x01\xa6device\xa3any\xa5queue\xa7default\xa8priority\x00\xa4user\xa6layout\xc0'
    b'\xafcheckpoint_path\xc0\xb1checkpoint_memory\xc2\xaequarantine_bad\xc2\xb0progress_pattern\xc0\xa7restart'
    b'\x86\xa3max\x00\xa9backoff_s\xcb?\xf0\x00\x00\x00\x00\x00\x00\xa2on\x91\xa3any\xa4warm\xc2\xa8policies'
    b'\x90\xa7insists\xc2\xa6limits\x83\xacmemory_bytes\xc0\xa4cpus\xc0\xa4pids\xc0\xa9timeout_s\xc0\xafqueue_timeout_s'
    b'\xc0\xa7grace_s\xcb@$\x00\x00\x00\x00\x00\x00\xb5price_per_device_hour\xc0\xaapreemption\xa6medium'
    b'\xadmin_runtime_s\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xaaestimate_s\xc0\xa8requests\x82\xa4cpus\xcb\x00\x00\x00\x00\x00\x00\x00\x00'
    b'\xacmemory_bytes\x00\xa5where\x84\xa6models\x82\xa7include\x90\xa7exclude\x90\xa5uuids\x82\xa7include'
    b'\x90\xa7exclude\x90\xa6labels\x80\xa8tolerate\x90\xa8topology\xc0\xa5share\xc0\xa8hardware\x83\xa6prefer'
    b'\xa4none\xa6vendor\xa3any\xa3mix\xc2\xa5steps\xc0\xa7elastic\xc0\xa5roles\x90\xa7idle_ok\xc2\xaarendezvous'
    b'\xa4none\x00\xcf'
)  # fmt: skip
"""What most records have. Never to be changed: what was packed with it could not be read any more."""

_PACKED: Final = 0x78  # the first byte of zlib's form, which no record in msgpack begins with


def packed(record: bytes) -> bytes:
    """The record, about a tenth of its size."""
    squeeze = zlib.compressobj(1, zdict=_USUAL)
    return squeeze.compress(record) + squeeze.flush()


def unpacked(kept: bytes) -> bytes:
    """The record again; one that an earlier version kept is not packed."""
    return zlib.decompressobj(zdict=_USUAL).decompress(kept) if kept[0] == _PACKED else kept

"""What stands before a message, in every form that tools print. The lines were written from the documented forms."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unidle.guard.log import LogLine, Reader, Splitter
from unidle.guard.log.header import parse, seconds_ns, wall_ns
from unidle.guard.log.split import LINE_BYTES

SAID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus."
FORMS = [
    "{}",
    "   {}",
    "kernel: {}",
    "[  219.471050] {}",
    "[    0.000001] {}",
    "[12345678.123456] {}",
    "[   12.345678][  T123] {}",
    "[   12.345678] [    C0] {}",
    "[    1.5 <    0.1>] {}",
    "[  +0.000123] {}",
    "[Aug30 11:43] {}",
    "[Fri Aug 30 11:43:09 2024] {}",
    "[Mon Feb 2 22:52:45 2026] {}",
    "[Mon Feb  2 22:52:45 2026] {}",
    "Fri Aug 30 11:43:09 2024 {}",
    "[...] {}",
    "<3>[  12.345678] {}",
    "<4>{}",
    "kern  :err   : [  219.471050] {}",
    "kern  :err   : [Fri Aug 30 11:43:09 2024] {}",
    "kern  :err   : 2025-01-25T10:34:54,859532+00:00 {}",
    "kern  :warn  : {}",
    "user  :notice: [  219.471050] {}",
    "syslog:err   : 2025-05-27T04:18:56,089671+00:00 {}",
    "2025-01-25T10:34:54,859532+00:00 {}",
    "3,1234,567890,-;{}",
    "12,1234,567890,-;{}",
    "3,1234,567890,-,caller=T123;{}",
    "3,1234,567890,c;{}",
    "Dec  2 11:38:47 worker4 kernel: [  219.471050] {}",
    "Dec  2 11:38:47 worker4 kernel: {}",
    "Dec 02 11:38:47.123456 worker-4.example.org kernel: {}",
    "Okt 06 17:59:27 balrog kernel: {}",
    "6月 28 02:52:53 jjf-Super-Server kernel: {}",
    "[EVENT] KERNEL(4128,sklogd):2024-01-22-05:03:02.259.649 [klogd.c:253][2572550.901383] {}",
    "archlinux kernel: {}",
    "1759600000.5 host kernel: {}",
    "Feb 14 05:03:41 000-000-00000-1-gpu-1 kernel: {}",
    "2024-08-30T11:43:09.123456+02:00 worker4 kernel: [  219.471050] {}",
    "2024-08-30T11:43:09Z worker4 kernel: {}",
    "2024-08-30T11:43:09+0000 worker4 kernel: {}",
    "2024-08-30 11:43:09 worker4 kernel: {}",
    "2024-08-30 11:43:09 {}",
    "Fri 2024-08-30 11:43:09 UTC worker4 kernel: {}",
    "Fri 2024-08-30 11:43:09.123456 CEST worker4 kernel: {}",
    "1725018189.123456 worker4 kernel: {}",
    "[  219.471050] worker4 kernel: {}",
    "<3>1 2024-08-30T11:43:09.003Z worker4 kernel - - - {}",
    "kernel: Jan 21 11:18:36 kernel: {}",
    "/var/log/kern.log:Dec  2 11:38:47 worker4 kernel: {}",
    "/var/log/syslog.1:Dec  2 11:38:47 worker4 kernel: [  219.471050] {}",
    "\x1b[32m[  219.471050] \x1b[0m\x1b[33m{}\x1b[0m",
    "{}\r",
    "\ufeff{}",
    "19:14:43  {}",
    "19:14:43.250 {}",
    "[19:14:43] {}",
    "19:14:43 worker4 kernel: {}",
    "19:14:43 kernel: [  219.471050] {}",
    "kern  :err   : 19:14:43 {}",
]


@pytest.mark.parametrize("form", FORMS)
def test_an_xid_is_found_behind_every_form_of_stamp(form: str):
    found = Reader().read(LogLine(1, form.format(SAID).encode()))
    assert found is not None
    assert (found.kind, found.code, found.device, found.role) == ("xid", 79, "0000:3b:00.0", "culprit")


@pytest.mark.parametrize(
    "record",
    [
        {"MESSAGE": SAID, "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel", "PRIORITY": "3"},
        {"MESSAGE": list(SAID.encode()), "_TRANSPORT": "kernel"},
        {"MESSAGE": SAID, "SYSLOG_IDENTIFIER": "kernel"},
        {"MESSAGE": SAID.removeprefix("NVRM: "), "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "NVRM"},
    ],
)
def test_an_xid_is_found_in_the_journals_json(record: dict[str, object]):
    line = json.dumps({**record, "__REALTIME_TIMESTAMP": "1725018189123456", "_BOOT_ID": "b"}).encode()
    found = Reader().read(LogLine(1, line))
    assert found is not None
    assert (found.code, found.stamp_ns, found.clock) == (79, 1725018189123456000, "wall")


@pytest.mark.parametrize(
    "line",
    [
        "Dec  2 11:38:47 worker4 sshd[12]: {}",
        "Dec  2 11:38:47 worker4 python[812]: {}",
        "Dec  2 11:38:47 worker4 audit[1]: USER_CMD cmd={}",
        "2024-08-30T11:43:09.1+00:00 worker4 my-exporter[77]: {}",
        "2024-08-30 11:43:09 WARNING NVRM: Xid (PCI:0000:3b:00): 79 was seen by the exporter",
        "2024-08-30 11:43:09 INFO found '{}'",
        "2024-08-30 11:43:09,123 - monitor - ERROR - {}",
        "[  219.471050] worker4 python[12]: {}",
        "[  219.471050] my_module: {}",
        "[  219.471050] audit: type=1400 comm=\"Xid\" msg='{}'",
        "[  219.471050] systemd[1]: Starting a unit that greps for {}",
        "[gpu-health] [WARN] GPU-e11dfcca-7c93-959a-b8fd-5cfe0839b163: XID: {}",
        '{{"level":"warn","msg":"known xid","line":"{}"}}',
        '{{"MESSAGE":"{}","_TRANSPORT":"stdout","SYSLOG_IDENTIFIER":"python"}}',
        '{{"MESSAGE":"{}","_TRANSPORT":"syslog","SYSLOG_IDENTIFIER":"kernel","_UID":"1000"}}',
        "echo '{}' | logger",
        "*** Banner: if you see {} call us ***",
        "Last login: Mon Feb  2 on tty1; note: {}",
        "step 12 loss 3.1 # {}",
        "I1121 10:00:00.000000 1 monitor.go:12] {}",
        "E1121 Xid 79 in process Xid: nothing",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "NVRM: GPU Board Serial Number: 1653723052734",
        "NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
    ],
)
def test_a_line_that_only_quotes_an_xid_is_none(line: str):
    assert Reader().read(LogLine(1, line.format(SAID).encode())) is None


def test_kernel_time_and_wall_time_are_both_kept():
    entry = parse(b"2024-08-30T11:43:09.5+02:00 worker4 kernel: [  219.471050] NVRM: x")
    assert (entry.stamp_ns, entry.clock) == (1725010989500000000, "wall")
    assert entry.boot_ns == 219471050000


def test_a_date_that_does_not_exist_is_no_stamp_and_no_error():
    assert wall_ns(2025, 2, 30, "10:00:00") is None
    assert parse(b"2025-02-30T10:00:00Z host kernel: NVRM: x").message == "NVRM: x"
    assert seconds_ns("1.5") == 1_500_000_000


@given(st.binary(max_size=400))
def test_no_bytes_stop_the_reader(data: bytes):
    reader = Reader()
    reader.consider(LogLine(1, data))
    reader.consider(LogLine(2, b"NVRM: Xid (PCI:0000:3b:00): 79" + data))
    found = reader.read(LogLine(3, SAID.encode()))
    assert found is not None and found.code == 79  # and what comes after is read as ever


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
@example(b"\x00\n", [1])
@example(b"-" * LINE_BYTES + b"a\n", [1])
def test_lines_do_not_depend_on_how_the_stream_was_cut(data: bytes, cuts: list[int]):
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for needles in ((), (b"\x00", b"a", b"\xff")):
        pieces, whole = Splitter(needles=needles), Splitter(needles=needles)
        parts = [pieces.feed(data[a:b]) for a, b in pairwise(marks)]
        once = whole.feed(data) + whole.end()
        assert [line for part in parts for line in part] + pieces.end() == once
        assert pieces.number == whole.number == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def test_a_line_of_a_megabyte_keeps_its_beginning_and_costs_no_memory():
    splitter = Splitter()
    lines = splitter.feed(SAID.encode() + b" " + b"x" * 500_000)
    lines += splitter.feed(b"x" * 500_000 + b"\n" + SAID.encode() + b"\n")
    assert [len(line.data) for line in lines] == [LINE_BYTES, len(SAID)]
    assert [f is not None and f.code for f in map(Reader().read, lines)] == [79, 79]


def test_nul_bytes_of_a_torn_file_do_not_hide_a_line():
    lines = Splitter().feed(b"\0" * 4096 + SAID.encode() + b"\n")
    found = Reader().read(lines[0])
    assert found is not None
    assert found.code == 79


def test_a_time_of_day_that_goes_back_is_of_the_next_day():
    """So that what was said just before midnight explains what follows, and what was a day ago does not."""
    reader = Reader()
    times = ("23:59:50", "23:59:49", "00:00:10", "00:00:05")
    found = [reader.read(LogLine(k, f"{time}  {SAID}".encode())) for k, time in enumerate(times, 1)]
    stamps = [one.stamp_ns for one in found if one is not None and one.stamp_ns is not None]
    assert [(stamp - stamps[0]) // 10**9 for stamp in stamps] == [0, -1, 20, 86_400 + 15]
    assert {one.clock for one in found if one is not None} == {"local"}


@pytest.mark.parametrize(
    "line", [f"25:61:99  {SAID}", f"12:34:56:78 {SAID}", f"19:14:43 box app[3]: said {SAID}"]
)
def test_what_is_no_time_of_day_is_no_stamp(line: str):
    assert Reader().read(LogLine(1, line.encode())) is None


_MISMATCH = "Failed to query NVIDIA devices: Driver/library version mismatch"


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"_TRANSPORT": "syslog", "_UID": "0"}, True),
        ({"_TRANSPORT": "stdout", "_UID": "119", "_SYSTEMD_UNIT": "nvidia-persistenced.service"}, True),
        ({}, True),  # of a file that is not the journal's own
        ({"_TRANSPORT": "syslog", "_UID": "1000"}, False),
        ({"_TRANSPORT": "journal", "_UID": "1000", "_SYSTEMD_UNIT": "user@1000.service"}, False),
        ({"_TRANSPORT": "stdout", "_UID": "1000", "_SYSTEMD_UNIT": "session-3.scope"}, False),
        ({"_TRANSPORT": "syslog"}, False),
    ],
)
def test_in_the_journal_a_program_is_known_by_fields_that_no_user_can_write(
    fields: dict[str, str], counts: bool
) -> None:
    record = {"MESSAGE": _MISMATCH, "SYSLOG_IDENTIFIER": "nvidia-persistenced", **fields}
    found = Reader().read(LogLine(1, json.dumps(record).encode()))
    assert (found is not None) == counts

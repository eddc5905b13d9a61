"""The gang's port: chosen without a race, kept for the attempt's life, usable by the gang."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import sys
from pathlib import Path

import pytest

from engine_local.local_gangs import Machine, sh
from unidle.engine.local.ranks import spawn

IP_LOCAL_PORT_RANGE = 51  # linux/in.h, from Linux 6.3 on

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("total", int(total), flush=True)
dist.destroy_process_group()
"""


def port_of(directory: Path) -> int:
    return int(json.loads((directory / "gang.json").read_text())["master_port"])


@pytest.mark.slow
def test_four_real_ranks_meet_on_the_reserved_port(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ALL_REDUCE)
    gang = machine.start((sys.executable, str(script)), 4)
    assert gang.codes(120) == [0, 0, 0, 0], gang.log()
    assert [gang.log(rank) for rank in range(4)] == ["total 10\n"] * 4


def test_each_attempt_has_its_own_port_while_both_run(machine: Machine) -> None:
    gangs = [machine.start(sh("exec sleep 300"), 2, attempt=attempt) for attempt in (1, 2, 3)]
    for gang in gangs:
        gang.spawned()
    assert len({port_of(gang.directory) for gang in gangs}) == 3


def test_no_one_else_is_given_the_port_or_takes_it(machine: Machine) -> None:
    gang = machine.start(sh("exec sleep 300"), 2)
    gang.spawned()
    port = port_of(gang.directory)
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_STREAM) as other, pytest.raises(OSError) as failure:
            other.bind((address, port))
        assert failure.value.errno == errno.EADDRINUSE


def test_the_kernel_gives_a_reserved_port_to_no_one() -> None:
    """Sockets that take any port of the three around the reserved one never get that one."""
    with spawn.reserve_port() as reserved, contextlib.ExitStack() as opened:
        port = reserved.getsockname()[1]
        three = struct.pack("I", (port + 1) << 16 | (port - 1))
        given = set()
        for _ in range(20):
            other = opened.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, three)
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", 0))
                other.listen()
                given.add(other.getsockname()[1])
        assert given and port not in given


def test_rank_0_can_listen_where_the_port_is_only_kept(machine: Machine) -> None:
    with spawn.reserve_port() as reserved, socket.socket(socket.AF_INET6) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("::", reserved.getsockname()[1]))
        store.listen()
        with socket.create_connection(("127.0.0.1", reserved.getsockname()[1])):
            pass


def test_the_port_is_free_again_after_the_end(machine: Machine) -> None:
    gang = machine.start(sh("exit 0"), 2)
    gang.ends()
    port = port_of(gang.directory)

    def is_free() -> bool:
        with socket.socket() as other:
            try:
                other.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    gang.until(is_free, what="the port")

"""What a command writes appears whole under its name; devices are written, never replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from e2e.commands import unidle

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1,1,1000\n"


def packed(where: Path, out: Path | str) -> str:
    (where / "nodes.csv").write_text(NODES)
    (where / "pods.csv").write_text(PODS)
    words = ("--policy", "firstfit", "--seeds", "1", "--decisions", out)
    done = unidle("replay", "openb", "--nodes", where / "nodes.csv", "--pods", where / "pods.csv", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_behind_a_link_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "d.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(there / "d.csv")
    packed(tmp_path, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (
        (there / "d.csv").read_text().startswith("policy,seed,seq,pod,node,gpus\nfirstfit,1,0,p,n0,0:1000\n")
    )
    assert [path.name for path in there.iterdir()] == ["d.csv"]


def test_a_fifo_is_written_and_stays_one(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    packed(tmp_path, fifo)
    reader.join(timeout=60)
    assert read[0].startswith("policy,seed,seq,pod,node,gpus\n")
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_standard_output_takes_the_rows(tmp_path: Path) -> None:
    assert packed(tmp_path, "-").startswith("policy,seed,seq,pod,node,gpus\n")
